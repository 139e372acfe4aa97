"""The weights that a node has or is fetching, on its disk. Knows neither storage nor other nodes."""
