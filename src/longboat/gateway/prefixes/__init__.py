"""Follows what engines tell of their KV caches, into the index that routing reads. Chooses no endpoint."""
