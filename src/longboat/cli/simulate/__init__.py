"""``longboat simulate``: a twin of the fleet in a file, under the load of a trace."""
