"""Changes of the fleet that operators order through the admin API or the console. It decides nothing about roles."""
