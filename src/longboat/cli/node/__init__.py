"""Commands on this machine: its node of the cluster and its engine environments."""
