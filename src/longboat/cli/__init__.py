"""The command line: the composition root. Commands are thin; what is heavy to import is imported when it is needed."""
