"""How weights are stored: rules in a model's files, and what-if quantizations applied to a shape."""
