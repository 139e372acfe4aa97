"""llama.cpp: one host by the server in a wheel, several hosts by a server that is built with RPC."""
