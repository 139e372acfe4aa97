"""Metrics, access log, traces and usage. It decides nothing about a request."""
