"""The way of an admitted request through engines: a pure lifecycle, and the exchange that carries it out."""
