"""One reader for each API: what the client already has of a stream, and what remains of it. Pure."""
