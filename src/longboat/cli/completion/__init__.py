"""Names of the running fleet that the shell completes. It must load little, and show no error: a person is typing."""
