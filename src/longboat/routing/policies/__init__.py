"""Chooses among replicas that may get a request: one module for each policy. Knows no gateway and no engine."""
