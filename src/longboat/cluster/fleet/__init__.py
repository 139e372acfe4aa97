"""Decisions about the whole fleet, and the controller that carries them out. The decisions are pure."""
