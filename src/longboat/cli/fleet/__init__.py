"""Commands on a running fleet: up, down, status, logs, usage, drain and demo."""
