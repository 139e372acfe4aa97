"""Fixtures of the network lab."""
