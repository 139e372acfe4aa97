"""Hosts made of namespaces: a small network for tests, which vanishes with the process that made it."""
