"""One gang: its supervisor, its agents and their heartbeats. It knows no other gang."""
