"""Hosts made of namespaces, for tests."""
