"""Reads what a plan may be asked with beside options: a command that already runs. Must not print."""
