"""Switches one trick of the gateway off; for ``bench_tricks.py`` alone."""
