"""Which replicas live, and what each node's gateway is to know and do. It decides, and calls no other process."""
