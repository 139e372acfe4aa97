"""Commands that look at a running fleet: status, logs and usage. They change nothing."""
