"""Dashboards, alerts and runbooks of a fleet: pure text about the metrics of `core`. It reads and writes nothing."""
