"""Ray actors, Serve applications and the session of a command. Everything else is testable without Ray."""
