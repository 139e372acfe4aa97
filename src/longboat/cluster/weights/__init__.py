"""Weights in a cluster: the controller's orders, a daemon's place in the swarm, and how agents fetch by both."""
