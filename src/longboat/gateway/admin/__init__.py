"""The admin API and the control socket, for one process and for a whole node. No client request passes through it."""
