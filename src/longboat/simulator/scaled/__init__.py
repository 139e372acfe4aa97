"""Plays a fleet whose replicas come and go: the production scaler over simulated engines. Knows no prefix routing."""
