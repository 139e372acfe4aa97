"""Learning the constants of the time model from measured rows, and judging them."""
