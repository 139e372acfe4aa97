"""What request and response bodies mean in each API. Pure; it opens no connection."""
