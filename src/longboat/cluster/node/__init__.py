"""The daemon of one node: it keeps the gateway process running and fed. It starts no engine."""
