"""What a run gave: distributions, rows and curves. Decides nothing."""
