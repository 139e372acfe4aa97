"""TODO: gateway."""
