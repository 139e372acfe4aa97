"""What lets another engine continue a broken response. Pure; it opens no connection."""
