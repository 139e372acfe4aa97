"""What several commands share: the cluster to talk to, tables, errors and interrupts. It has no command."""
