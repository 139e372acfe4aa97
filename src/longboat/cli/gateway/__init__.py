"""Commands that run a gateway by itself, without Ray."""
