"""Engine environments: found, locked and installed. It starts no engine."""
