"""The life of one request, from its first byte to its last. It starts no process."""
