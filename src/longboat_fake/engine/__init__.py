"""The fake engine without HTTP: admission, KV blocks, tokens, scripts and faults."""
