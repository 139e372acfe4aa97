"""The nouns that all rooms share: errors, topology, plans, states. Imports nothing of Longboat and does no I/O."""
