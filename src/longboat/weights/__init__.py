"""Weights of models on a node: fetched from storage and from other nodes, checked, published, pinned and evicted.

``pieces`` decides and does no I/O. ``sources`` reads storage, ``store`` keeps what a node has, ``swarm`` lets nodes
share it, and ``fetch`` joins the four.
"""
