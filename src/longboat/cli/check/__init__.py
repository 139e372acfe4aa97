"""Checks that start nothing: of fleet files, on live, described or no machines; and a first file for this machine."""
