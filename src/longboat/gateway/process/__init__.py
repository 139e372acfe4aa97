"""One gateway process and the parent of several: listeners, sweeps, workers. Nothing imports it but the entry point."""
