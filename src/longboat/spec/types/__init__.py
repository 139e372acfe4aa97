"""The types of the fleet file: frozen, strict, every default in one place."""
