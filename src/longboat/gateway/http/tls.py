"""The listener's TLS: a certificate and its key from two files, read again when they change."""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
import termios
from typing import Any

from longboat.core.errors import UserInputError
from longboat.telemetry import logger

__all__ = ("ServerTls", "TlsTransport")

log = logger("gateway")

Stamp = tuple[int, ...]

_LOOK_S = 0.1  # until it is seen whether a client has taken more


class ServerTls:
    """The listener's certificate. ``context`` stays the same; each handshake gets the newest pair that can be used.

    :raises UserInputError: the pair cannot be used
    """

    def __init__(self, certificate: str, key: str, *, loud: bool = True) -> None:
        self._certificate = certificate
        self._key = key
        self._loud = loud
        self._seen = self._stamp()
        self._settled = self._seen
        self.context = self._newest = _load(certificate, key)
        self.context.sni_callback = self._choose

    def refresh(self) -> bool:
        """Read the files again if they changed, and return whether there is a new pair.

        Call it in a thread, because it reads the disk. A change counts when two calls see it alike, so that a pair of
        which only one half was replaced is left alone.
        A pair that cannot be used is reported once in the log, and the old one stays.
        """
        stamp = self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if not settled or stamp == self._settled:
            return False
        self._settled = stamp
        try:
            self._newest = _load(self._certificate, self._key)
        except UserInputError as error:
            self._say(f"{error.message}; the old certificate stays in use; {error.hint}")
            return False
        self._say(f"the certificate {self._certificate} was read again")
        return True

    def _choose(self, handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Choose the newest pair. OpenSSL calls this for every handshake, also where the client names no server."""
        handshake.context = self._newest

    def _stamp(self) -> Stamp:
        return (*_stamp(self._certificate), *_stamp(self._key))

    def _say(self, message: str) -> None:
        if self._loud:
            log.warning("%s", message)


class TlsTransport:
    """A TLS transport that takes ``write_eof``, and closes after all was sent, as plain TCP does.

    TLS has no half-closed connection, so ``write_eof`` waits for the ``close`` that follows. The calls of the hot path
    go straight to the transport.
    """

    __slots__ = ("_transport", "is_closing", "pause_reading", "resume_reading", "write", "writelines")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.write = transport.write
        self.writelines = transport.writelines
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.is_closing = transport.is_closing

    def write_eof(self) -> None:
        """Do nothing: ``close`` follows."""

    def close(self) -> None:
        """Close once the client's host has all that was written.

        The loop's own ``close`` drops what is left after a second. The caller ends a client that takes nothing more.
        """
        if self._has_unsent():
            asyncio.get_running_loop().call_later(_LOOK_S, self.close)
        else:
            self._transport.close()

    def _has_unsent(self) -> bool:
        """Return whether bytes wait here, or in the kernel for the client's acknowledgement."""
        transport = self._transport
        sock = transport.get_extra_info("socket")
        if transport.is_closing() or sock is None or sock.fileno() < 0:
            return False
        try:
            unacknowledged = any(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        except OSError:  # it has just closed
            return False
        return unacknowledged or transport.get_write_buffer_size() > 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _stamp(path: str) -> Stamp:
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _load(certificate: str, key: str) -> ssl.SSLContext:
    for path, name in ((certificate, "certificate"), (key, "key")):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            what = f"tls.{name}: cannot read {path}: {error.strerror}"
            raise UserInputError(what, hint="give the path of a PEM file that this user can read") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UserInputError(f"tls: {certificate} and {key} cannot be used: {_reason(error)}", hint=_HINT) from error
    return context


_HINT = "give a PEM certificate (with its chain after it) and its own key, without a password"


def _reason(error: Any) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)


def _no_password() -> str:
    """Refuse to give a password; without this, OpenSSL would wait for one on the terminal."""
    raise ValueError("the key has a password")
