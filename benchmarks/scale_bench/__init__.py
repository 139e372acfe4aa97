"""The stand of ``bench_scale.py``: processes that stand for many replicas, for nodes, and for the controller."""
