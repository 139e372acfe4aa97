"""A fetch from its source to a published folder, and what other rooms call."""
