"""Completion by the shell: commands that are made when they are used, and names of the running fleet.

It must load little, and show no error: a person is typing.
"""
