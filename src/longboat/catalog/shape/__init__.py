"""The shape of a model: weights, caches and layers, from which planning counts bytes and operations."""
