"""YAML text to plain values, strictly, with the place of each value."""
