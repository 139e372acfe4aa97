"""One reader for each family whose layers differ from a common decoder's."""
