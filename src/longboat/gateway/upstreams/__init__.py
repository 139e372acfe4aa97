"""Engines as the gateway sees them: connections, health, slots and the endpoint table. It knows no client."""
