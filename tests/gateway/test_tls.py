"""TLS at the gateway: what is served, how a changed certificate comes in, and how a broken one stays out."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trustme
from fake_upstream import DEADLINE_S, STREAM_HEAD, FakeUpstream, Seen, chunk, event
from gateway_lab import RawClient, config, endpoint, eventually, post_bytes, table

from longboat.core.errors import UserInputError
from longboat.gateway.http.tls import ServerTls
from longboat.gateway.process.server import Gateway
from longboat.gateway.requests.client_link import progress_of
from longboat.gateway.requests.connection import ClientConnection

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


class Pair:
    """A certificate and its key in two files, by an authority that the clients of this test trust."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate = folder / "certificate.pem"
        self.key = folder / "key.pem"
        self.renew("localhost")

    def renew(self, name: str) -> None:
        """Both files anew, as `mv` does it."""
        made = self.authority.issue_cert(name)
        self.put(self.certificate, b"".join(blob.bytes() for blob in made.cert_chain_pems))
        self.put(self.key, made.private_key_pem.bytes())

    @staticmethod
    def put(path: Path, content: bytes) -> None:
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.rename(path)

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


MakeTls = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def make_tls(pair: Pair) -> AsyncIterator[MakeTls]:
    made: list[Gateway] = []

    async def make(*upstreams: FakeUpstream) -> Gateway:
        gateway = Gateway(config(tls_certificate=str(pair.certificate), tls_key=str(pair.key)))
        await gateway.start()
        made.append(gateway)
        gateway.state.offer_table("e", table(*(endpoint(u, f"r{i}") for i, u in enumerate(upstreams))))
        return gateway

    yield make
    for gateway in made:
        gateway.stop(0.0)
        await gateway.stopped.wait()


async def to(gateway: Gateway, context: ssl.SSLContext, name: str = "localhost") -> RawClient:
    opened = asyncio.open_connection("127.0.0.1", gateway.port, ssl=context, server_hostname=name)
    return RawClient(*await asyncio.wait_for(opened, DEADLINE_S))


async def test_tls_serves_several_requests_on_one_connection(
    make_tls: MakeTls, make_upstream: Callable[..., Awaitable[FakeUpstream]], pair: Pair
) -> None:
    client = await to(await make_tls(await make_upstream()), pair.client())
    for _ in range(3):
        assert (await client.post(ASK)).status == 200
    client.abort()


async def test_tls_streams(
    make_tls: MakeTls, make_upstream: Callable[..., Awaitable[FakeUpstream]], pair: Pair
) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(STREAM_HEAD)
        for word in ("a", "b", "c"):
            await seen.send(chunk(event(word)))
        await seen.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    client = await to(await make_tls(await make_upstream(script)), pair.client())
    answer = await client.post({**ASK, "stream": True})
    assert answer.complete and answer.body.count(b"data: ") == 4
    client.abort()


async def test_progress_of_a_client_that_reads_slowly_is_seen_through_tls(
    make_tls: MakeTls, make_upstream: Callable[..., Awaitable[FakeUpstream]], pair: Pair
) -> None:
    size = 12_000_000

    async def numbers(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size)
        await seen.send(b"[" + b"1" * (size - 2) + b"]")

    upstream = await make_upstream(numbers)
    gateway = await make_tls(upstream)
    client = await to(gateway, pair.client())
    client.writer.transport.pause_reading()
    client.send(post_bytes({"model": "tiny", "input": "x"}, "/v1/embeddings"))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    [connection] = gateway.state.connections
    assert isinstance(connection, ClientConnection)
    await eventually(lambda: connection.exchange is None, "the answer is written")
    before = progress_of(connection.transport)
    client.writer.transport.resume_reading()
    assert len((await client.response()).body) == size
    await eventually(lambda: progress_of(connection.transport) > before + size // 4, "the client's progress is seen")
    client.abort()


async def test_tls_client_that_asks_for_it_is_closed_after_the_answer(make_tls: MakeTls, pair: Pair) -> None:
    client = await to(await make_tls(), pair.client())
    client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await client.response()).status == 200
    assert await client.at_end()


async def test_tls_client_that_reads_slowly_gets_all_of_its_last_answer(
    make_tls: MakeTls, make_upstream: Callable[..., Awaitable[FakeUpstream]], pair: Pair
) -> None:
    body = b"[" + b"1" * 60_000 + b"]"

    async def numbers(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        await seen.send(body)

    gateway = await make_tls(await make_upstream(numbers))
    may_ask = threading.Event()
    asking = asyncio.create_task(asyncio.to_thread(read_late, gateway.port, pair.client(), may_ask))
    await eventually(lambda: gateway.state.connections, "the client is there")
    [connection] = gateway.state.connections
    assert isinstance(connection, ClientConnection)
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    may_ask.set()
    assert (await asking).endswith(body)


def read_late(port: int, context: ssl.SSLContext, may_ask: threading.Event) -> bytes:
    """Ask, and read only when the gateway neither lingers nor waits for a reply to the end of TLS any more."""
    with socket.socket() as sock:
        sock.settimeout(DEADLINE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        with context.wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False) as tls:
            may_ask.wait(DEADLINE_S)
            tls.sendall(post_bytes({"model": "tiny", "input": "x"}, "/v1/embeddings", headers="connection: close\r\n"))
            time.sleep(4.0)
            return b"".join(iter(lambda: tls.recv(65536), b""))


async def test_plain_http_on_a_tls_port_is_closed(make_tls: MakeTls) -> None:
    client = await RawClient.to(await make_tls())
    client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    seen = await client.read_some()
    assert not seen.startswith(b"HTTP/")


async def test_client_of_tls_1_1_is_refused(make_tls: MakeTls, pair: Pair) -> None:
    context = pair.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await to(await make_tls(), context)


async def test_client_of_http_2_is_offered_http_1_1_only(make_tls: MakeTls, pair: Pair) -> None:
    context = pair.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    client = await to(await make_tls(), context)
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    client.abort()


async def test_renewed_certificate_comes_in_while_connections_stay(make_tls: MakeTls, pair: Pair) -> None:
    gateway = await make_tls()
    old = await to(gateway, pair.client())
    pair.renew("renewed.example")
    async with asyncio.timeout(DEADLINE_S):
        while not (new := await trying(gateway, pair, "renewed.example")):  # noqa: ASYNC110 what happens is in a thread
            await asyncio.sleep(0.05)
    assert (await new.get("/livez")).status == 200
    assert (await old.get("/livez")).status == 200
    new.abort()
    old.abort()


async def trying(gateway: Gateway, pair: Pair, name: str) -> RawClient | None:
    try:
        return await to(gateway, pair.client(), name)
    except ssl.SSLCertVerificationError:
        return None


async def test_broken_pair_leaves_the_old_one_and_is_told_of_once(
    make_tls: MakeTls, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await make_tls()
    stranger = trustme.CA().issue_cert("localhost")
    pair.put(pair.key, stranger.private_key_pem.bytes())
    told: list[str] = []

    def was_told() -> bool:
        told.append(caplog.text)
        caplog.clear()
        return "the old certificate stays in use" in "".join(told)

    await eventually(was_told, "a message about the broken pair")
    client = await to(gateway, pair.client())
    assert (await client.get("/livez")).status == 200
    client.abort()


def test_change_counts_when_it_has_settled(pair: Pair) -> None:
    tls = ServerTls(str(pair.certificate), str(pair.key), loud=False)
    assert not tls.refresh()
    pair.renew("localhost")
    assert [tls.refresh() for _ in range(4)] == [False, True, False, False]


def test_broken_pair_is_told_of_once(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    tls = ServerTls(str(pair.certificate), str(pair.key))
    pair.key.write_bytes(b"not a key")
    assert not any(tls.refresh() for _ in range(5))
    assert len(caplog.records) == 1
    pair.renew("localhost")
    assert [tls.refresh() for _ in range(2)] == [False, True]


def test_files_that_went_away_leave_the_old_pair(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    tls = ServerTls(str(pair.certificate), str(pair.key))
    pair.certificate.unlink()
    assert not any(tls.refresh() for _ in range(3))
    assert "cannot read" in caplog.text


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_missing_file_is_named(which: str, pair: Pair) -> None:
    getattr(pair, which).unlink()
    with pytest.raises(UserInputError, match=rf"tls\.{which}: cannot read .*{which}\.pem: No such file") as caught:
        ServerTls(str(pair.certificate), str(pair.key))
    assert caught.value.hint


def test_key_of_another_certificate_is_refused(pair: Pair) -> None:
    pair.key.write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes())
    with pytest.raises(UserInputError, match="mismatch"):
        ServerTls(str(pair.certificate), str(pair.key))


def test_key_with_a_password_is_refused_without_asking_for_it(pair: Pair) -> None:
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(pair.key.read_bytes(), None)
    locked = form.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, locked))
    with pytest.raises(UserInputError, match="the key has a password"):
        ServerTls(str(pair.certificate), str(pair.key))


async def test_accepted_connections_send_at_once_and_notice_dead_clients(
    make_gateway: Callable[..., Awaitable[Gateway]],
) -> None:
    gateway = await make_gateway()
    client = await RawClient.to(gateway)
    assert (await client.get("/livez")).status == 200
    port = client.writer.get_extra_info("sockname")[1]
    with accepted_socket(port) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    client.abort()


def accepted_socket(peer_port: int) -> socket.socket:
    """This process's end of the connection whose other end has ``peer_port``."""
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if sock.family == socket.AF_INET and sock.getpeername()[1] == peer_port:
                return sock
        except OSError:
            pass
        sock.close()
    raise AssertionError(f"no socket is connected to port {peer_port}")
