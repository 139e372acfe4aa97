"""TODO: cluster."""
