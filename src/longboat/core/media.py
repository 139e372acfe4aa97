"""The rules about images, sounds and videos in requests: where an engine may fetch them, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("MediaRules",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRules:
    """The rules of one model. Data URLs are always allowed; addresses only of these domains."""

    domains: tuple[str, ...] = ()  # exact hosts, or ``*.example.com`` for all hosts below it; empty: no addresses
    max_bytes: int = 20 * 2**20  # of one image, sound or video
    max_pixels: int = 33_554_432  # of one image, once it is decoded
    max_items: int = 16  # images, sounds and videos of one request together
    private_addresses: bool = False  # whether a host may have an address that is not public
    in_texts: bool = False  # whether the engine also loads images that texts name: ``![](ADDRESS)``
