"""Tells gateways which prefixes of prompts this engine's KV cache holds, in the names that gateways give to them."""
