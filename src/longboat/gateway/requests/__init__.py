"""From a client's connection to an admitted request, or to a response of the gateway itself."""
