"""Readers of file formats: config.json, safetensors and GGUF headers. They know no model family."""
