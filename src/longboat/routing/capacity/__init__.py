"""Slots and quotas, divided between gateways and their processes. Pure."""
