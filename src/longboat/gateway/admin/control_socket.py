"""The control socket (Unix): the holder of the token sends tables, asks for the state, drains and stops."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import orjson

from longboat.core.errors import UserInputError
from longboat.core.states import EndpointTable
from longboat.core.table_changes import TableKeeper, TableUpdate
from longboat.gateway.admin.node_query import decode_query
from longboat.gateway.admin.node_view import Answers
from longboat.gateway.http.message import Message, read_request
from longboat.gateway.http.responses import error_document, json_answer
from longboat.gateway.upstreams.table_document import decode_update

__all__ = ("ControlServer", "Steered")

_MAX_REQUEST_BYTES = 64 * 1024 * 1024
_CALL_TIMEOUT_S = 20.0
WAKES_S = 5.0
"""Seconds after which a call that waits for requests of sleeping models is answered anyway."""


class Steered(Protocol):
    """A gateway, or the parent of several."""

    @property
    def answers(self) -> Answers:
        """Return what this gateway knows without asking its own parent."""

    async def offer_table(self, epoch: str, table: EndpointTable) -> bool: ...
    async def offer_policy(self, document: bytes) -> bool: ...
    async def offer_view(self, document: bytes) -> None: ...
    async def report(self) -> dict[str, Any]: ...
    async def leases(self, document: bytes) -> Mapping[str, Any]: ...
    async def wakes(self, timeout_s: float) -> list[str]: ...
    async def drain(self) -> None: ...
    async def undrain(self) -> None: ...
    def stop(self, deadline_s: float | None = None) -> None: ...
    def heard(self) -> None: ...


class _CallError(Exception):
    """A call that gets an error reply."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ControlServer:
    """A small HTTP/1.1 server; each connection carries one call."""

    def __init__(self, steered: Steered, path: str, token: str) -> None:
        self._steered = steered
        self._path = path
        self._authorization = f"Bearer {token}".encode()
        self._server: asyncio.Server | None = None
        self._tables = TableKeeper()  # as sent, to which changes apply

    async def start(self) -> None:
        """Listen. Raise UserInputError where the path cannot be used, or another gateway answers on it."""
        await _remove_stale(self._path)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
            os.chmod(self._path, 0o600)
        except OSError as error:
            hint = "use a shorter path, in a folder that exists and is yours"
            raise UserInputError(f"cannot make the control socket {self._path}: {error}", hint=hint) from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                writer.write(await self._call(reader))
                await writer.drain()
        except OSError:
            pass  # the caller went away
        except asyncio.CancelledError:
            pass  # the process ends; asyncio's streams would report a cancelled handler as a defect
        finally:
            writer.close()

    async def _call(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = await _request(reader)
            if not hmac.compare_digest(request.headers.get("authorization", "").encode(), self._authorization):
                raise _CallError(401, "the control token is missing or wrong: send Authorization: Bearer", "token")
            if request.headers.get("x-longboat-caller") != "worker":
                self._steered.heard()
            return json_answer(200, await self._act(request.method, request.target, request.body), close=True)
        except _CallError as error:
            return json_answer(error.status, error_document(error.status, str(error), error.code), close=True)
        except UserInputError as error:
            return json_answer(400, error_document(400, f"{error.message} ({error.hint})", "bad_document"), close=True)

    async def _act(self, method: str, path: str, body: bytes) -> Mapping[str, Any]:
        match method, path:
            case "PUT", "/control/v1/table":
                return {"accepted": await self._take_table(decode_update(body))}
            case "GET", "/control/v1/state":
                report = await self._steered.report()
                return {**report, "number": self._tables.known_in(report["epoch"] or "")}
            case "PUT", "/control/v1/policy":
                return {"accepted": await self._steered.offer_policy(body)}
            case "PUT", "/control/v1/view":
                await self._steered.offer_view(body)
                return {"accepted": True}
            case "POST", "/control/v1/wakes":
                return {"models": await self._steered.wakes(WAKES_S)}
            case "POST", "/control/v1/leases":
                return await self._steered.leases(body)
            case "POST", "/control/v1/drain":
                await self._steered.drain()
                return {"draining": True}
            case "POST", "/control/v1/undrain":
                await self._steered.undrain()
                return {"draining": False}
            case "POST", "/control/v1/stop":
                self._steered.stop(_deadline_s(body))
                return {"stopping": True}
            case "POST", "/control/v1/query":
                return await self._steered.answers.ask(decode_query(body))
        raise _CallError(404, f"there is no {method} {path} on the control socket", "unknown_call")

    async def _take_table(self, update: TableUpdate) -> bool:
        """Take a table or its change. Where the gateway does not take it, the next one must be whole."""
        tables = TableKeeper()
        tables.epoch, tables.number, tables.table = self._tables.epoch, self._tables.number, self._tables.table
        if not tables.take(update) or tables.table is None:
            return False
        if not await self._steered.offer_table(update.epoch, tables.table):
            return False
        self._tables = tables
        return True


async def _request(reader: asyncio.StreamReader) -> Message:
    try:
        return await read_request(reader, max_bytes=_MAX_REQUEST_BYTES)
    except ValueError as error:
        raise _CallError(400, f"the call cannot be read: {error}", "bad_http") from None


def _deadline_s(body: bytes) -> float | None:
    try:
        value = orjson.loads(body).get("deadline_s") if body else None
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise _CallError(400, "send a JSON object with deadline_s, or nothing", "bad_document") from error
    return float(value) if isinstance(value, int | float) else None


async def _remove_stale(path: str) -> None:
    """Remove the socket file of a gateway that is gone. Raise UserInputError where one still answers there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 2.0)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        return
    writer.close()
    raise UserInputError(f"another gateway answers on {path}", hint="stop it, or use another control socket")
