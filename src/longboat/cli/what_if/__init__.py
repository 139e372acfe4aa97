"""Plans for the console: a process that a gateway starts for each question. It starts nothing, and changes nothing."""
