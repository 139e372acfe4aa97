"""API keys, the policy in force, and counters of what tenants may use. It sends nothing to engines."""
