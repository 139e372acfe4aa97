"""Requests to play: readers of trace formats, and generated sessions. Opens no file: it gets lines."""
