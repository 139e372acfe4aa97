"""Commands that make, list and revoke API keys."""
