"""The nouns all rooms share: errors, topology, plans, states. Imports nothing of Longboat, does no I/O."""
