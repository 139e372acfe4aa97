"""The meaning of request and response bodies in each API. Pure; it opens no connection."""
