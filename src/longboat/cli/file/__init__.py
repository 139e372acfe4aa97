"""The fleet file as a command was given it, and its schema."""
