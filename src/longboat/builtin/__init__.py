"""TODO: builtin."""
