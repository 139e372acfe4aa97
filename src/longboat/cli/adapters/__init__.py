"""``longboat adapters``: adapters of the running fleet. It must not start or end an engine."""
