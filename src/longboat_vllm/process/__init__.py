"""Processes of an engine: the keeper, the zygote and what a forked server needs."""
