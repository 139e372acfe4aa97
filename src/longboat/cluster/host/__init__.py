"""One machine: its network cards, its record, its Ray processes and the memory of its ranks. It imports no Ray."""
