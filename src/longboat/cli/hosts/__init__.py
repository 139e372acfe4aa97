"""Commands for bare hosts: a cluster from a list of hosts, over SSH."""
