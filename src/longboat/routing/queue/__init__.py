"""The fair queue: who waits, who goes next and how long it takes. Pure; time is an argument."""
