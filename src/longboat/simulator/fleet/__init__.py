"""The gateways and replicas of one model, and the events that drive them. Runs the production router and queue."""
