"""From the hosts file and the facts of hosts to problems, units and steps. Pure: no I/O."""
