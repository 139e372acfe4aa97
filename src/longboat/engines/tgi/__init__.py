"""The adapter of Text Generation Inference (TGI)."""
