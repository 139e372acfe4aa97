"""An endpoint as the router sees it."""

from __future__ import annotations

__all__ = ("RoutedEndpoint",)


class RoutedEndpoint:
    """The base of endpoints that a router compares.

    A class and no Protocol, so that compiled callers read its attributes without a look-up by name. Subclasses have
    attributes or properties of these names.
    """

    __slots__ = ()

    @property
    def key(self) -> str:
        """Return its name, which differs from that of every other endpoint of the model."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Return whether it takes new requests."""
        raise NotImplementedError

    @property
    def suspect(self) -> bool:
        """Return whether a connection to it failed a moment ago: it is chosen only when nothing better is left."""
        raise NotImplementedError

    @property
    def outstanding(self) -> int:
        """Return the requests that this gateway process sent to it and that have not ended."""
        raise NotImplementedError

    @property
    def capacity(self) -> int | None:
        """Return the most requests that it may have outstanding; None: no limit."""
        raise NotImplementedError

    def holds(self, adapter: str) -> bool:
        """Return whether its engine has the adapter in memory, as far as this process knows."""
        raise NotImplementedError
