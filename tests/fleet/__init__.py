"""Whole fleets, run by the command line as a person runs them."""
