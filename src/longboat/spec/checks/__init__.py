"""Mistakes: how they are found, where they stand and what works instead."""
