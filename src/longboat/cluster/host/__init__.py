"""One machine: its network cards, its record, its Ray processes and who keeps them running. It imports no Ray."""
