"""Which bytes a rank takes and whether they fit: weights, caches, what the engine needs. It knows no time."""
