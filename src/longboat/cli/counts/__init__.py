"""Numbers of replicas: changed by hand, and shown with who decided them and why."""
