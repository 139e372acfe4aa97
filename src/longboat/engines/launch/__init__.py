"""Starts and ends the processes of one node rank, from a zygote or plainly."""
