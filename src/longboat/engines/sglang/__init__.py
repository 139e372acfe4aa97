"""The adapter of SGLang. It never imports SGLang."""
