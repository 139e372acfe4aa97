"""Orders of the console that start and end models: a process that a gateway runs for each, as ``longboat up`` would."""
