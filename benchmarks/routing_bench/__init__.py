"""The parts of ``bench_routing.py``."""
