"""The fair queue: which request waits, which goes next and how long it takes. Pure; time is an argument."""
