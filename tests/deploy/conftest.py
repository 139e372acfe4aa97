"""The image is built once for all tests that run containers of it."""

from image_lab import image

__all__ = ("image",)
