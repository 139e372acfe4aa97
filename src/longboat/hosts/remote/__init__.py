"""Does what the plan says: the system's ssh, the scripts that run on hosts, and the order of steps among hosts."""
