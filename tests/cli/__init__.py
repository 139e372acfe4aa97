"""The command line, in this process and against fakes."""
