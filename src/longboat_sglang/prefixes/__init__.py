"""Lets SGLang's API server tell gateways which named prefixes of prompts the engine holds.

``tree`` runs in the scheduler, and ``front_end`` in the API server. The ledger and the feed are those of
``longboat_vllm.prefixes``.
"""
