"""A conversation in the terminal, over streams that survive a lost gateway."""
