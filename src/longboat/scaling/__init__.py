"""Decides how many replicas each model has: pure, from observations and the time. Knows no gateway and no cluster."""
