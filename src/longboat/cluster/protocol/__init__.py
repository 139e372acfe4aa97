"""Messages, names and seams between supervisors, agents, node daemons and the controller. It acts on nothing."""
