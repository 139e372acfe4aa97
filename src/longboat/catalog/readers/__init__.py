"""From what the files say to the shape of a model."""
