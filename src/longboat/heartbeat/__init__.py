"""Heartbeats from gangs to gateways: wire format, server and listener. It imports only ``routing``."""
