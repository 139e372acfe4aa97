"""Bare hosts: what stands on each of them, what is to be done there, and doing it over SSH. Knows nothing of Ray."""
