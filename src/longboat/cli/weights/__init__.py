"""``longboat weights``: the weights that this machine has."""
