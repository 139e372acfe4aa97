"""TODO: catalog."""
