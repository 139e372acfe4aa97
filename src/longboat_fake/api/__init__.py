"""The APIs of the fake engine in vLLM's shapes."""
