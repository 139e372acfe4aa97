"""A whole fleet on actual nodes: open settings decided, gangs shaped and packed, impossible wishes refused."""
