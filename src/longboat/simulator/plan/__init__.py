"""From what the planner decides for a fleet to the replicas that the twin simulates."""
