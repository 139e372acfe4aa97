"""The compiled leaf work of the gateway, written in C. It imports nothing of Longboat."""
