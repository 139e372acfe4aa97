"""What must be known before anything is started. It changes nothing on a node."""
