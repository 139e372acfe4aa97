"""A streamed answer that outlives its gateway: when one goes away, it or another gives the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import httpx

from longboat.core.errors import ClusterError

__all__ = ("LastingAnswer", "Refused", "ServerEvent", "events_in")

PATIENCE_S = 60.0
"""How long an answer that began is asked for again without news."""

_PAUSES_S = (0.05, 0.2, 0.5, 1.0)
_OTHER_GATEWAY = (b'"gateway_stopping"', b'"no_table"')
_LATER = (429, 502, 503, 504)
_DONE = "[DONE]"


class Refused(Exception):  # noqa: N818 - an outcome
    """A gateway answered with something else than a stream."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.body = body


class ServerEvent(NamedTuple):
    """One event; a comment has a text alone. event_id: empty where it has none."""

    event_id: str = ""
    data: str = ""
    comment: str = ""


def events_in(pieces: Iterator[bytes]) -> Iterator[ServerEvent]:
    """Yield whole events and comments; a cut one at the end is left out."""
    held, event_id, data = b"", "", ""
    for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").decode(errors="replace").partition(":")
            value = value.removeprefix(" ")
            if line.startswith(b":"):
                yield ServerEvent(comment=value)
            elif name == "id":
                event_id = value
            elif name == "data":
                data = f"{data}\n{value}" if data else value
            elif not name and data:
                yield ServerEvent(event_id, data)
                event_id = data = ""


class LastingAnswer:
    """The answer to one request. Iterate over it for the data of its events, each once.

    A client that has the last event's id and the answer's token gets the rest from any gateway of the fleet. Without a
    token, the engine keeps no journal: then the client repeats the request only while nothing of its answer has come.

    bases: addresses of gateways, without ``/v1``; they are asked in turn

    :raises Refused: a gateway refuses the request
    :raises ClusterError: no gateway is there, or none gives the rest
    """

    def __init__(self, client: httpx.Client, bases: Sequence[str], path: str, body: bytes) -> None:
        self._client = client
        self._bases = bases
        self._path = path
        self._body = body  # the very bytes are sent again: the token belongs to them
        self._at = 0
        self._event_id = self._token = self._failure = ""
        self._num_events = 0
        self._began = self._done = False

    def __iter__(self) -> Iterator[str]:
        end_s, num_vain = 0.0, 0
        while True:
            before = self._num_events
            yield from self._once()
            if self._done:
                return
            if self._num_events > before:
                num_vain = 0
            if not num_vain:
                end_s = time.monotonic() + PATIENCE_S
            num_vain += 1
            self._check(num_vain, end_s)
            self._at += 1
            time.sleep(_PAUSES_S[min(num_vain, len(_PAUSES_S)) - 1])

    def _check(self, num_vain: int, end_s: float) -> None:
        """Raise ClusterError where the rest may not be asked for once more."""
        if self._num_events and not self._token:
            what = "the gateway went away in the middle of the answer, and its engine keeps no journal"
            raise ClusterError(what, hint="ask again")
        if self._began and time.monotonic() < end_s:
            return
        if num_vain >= len(self._bases):
            where = " or ".join(self._bases)
            hint = "longboat status shows the gateways of the fleet; --url names another address"
            raise ClusterError(f"no answer from the gateway at {where}: {self._failure}", hint=hint)

    def _once(self) -> Iterator[str]:
        """Yield what one gateway gives of the answer."""
        url = f"{self._bases[self._at % len(self._bases)]}{self._path}"
        try:
            with self._client.stream("POST", url, content=self._body, headers=self._headers()) as response:
                if response.status_code != 200:
                    self._look_at(response.status_code, response.read())
                    return
                self._began = True
                self._token = response.headers.get("x-longboat-resume", self._token)
                yield from self._read(response.iter_bytes())
                kind = response.headers.get("content-type", "")
                if not self._num_events and not kind.startswith("text/event-stream"):
                    what = f"{url} answered with {kind or 'no content type'}, and not with a stream"
                    raise ClusterError(what, hint="check that this is the address of a gateway: --url")
        except httpx.HTTPError as error:
            self._failure = str(error)

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._event_id and self._token:
            headers |= {"last-event-id": self._event_id, "x-longboat-resume": self._token}
        return headers

    def _look_at(self, status: int, body: bytes) -> None:
        elsewhere = status == 503 and any(code in body for code in _OTHER_GATEWAY)
        if not elsewhere and not (self._began and status in _LATER):
            raise Refused(status, body)
        self._failure = f"HTTP status {status}"

    def _read(self, pieces: Iterator[bytes]) -> Iterator[str]:
        for event in events_in(pieces):
            name, _, value = event.comment.partition(": ")
            if name == "x-longboat-resume":
                self._token = value
            if not event.data:
                continue
            self._event_id = event.event_id or self._event_id
            self._num_events += 1
            if event.data == _DONE:
                self._done = True
                return
            yield event.data
