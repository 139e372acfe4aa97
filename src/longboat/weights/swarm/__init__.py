"""Nodes that share pieces: a server of this node's pieces and of the tracker, and the client of both."""
