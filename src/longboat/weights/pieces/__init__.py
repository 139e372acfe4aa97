"""Pure decisions: pieces of files, their order in a swarm, what is evicted, rates. No I/O and no clock."""
