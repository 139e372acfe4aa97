"""TODO: routing."""
