"""TODO: planner."""
