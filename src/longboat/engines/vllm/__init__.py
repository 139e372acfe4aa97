"""The adapter of vLLM. It never imports vLLM."""
