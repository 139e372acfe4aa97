"""Worker processes of Ray: forked from a warm parent, or started plainly. Knows neither gangs nor fleets."""
