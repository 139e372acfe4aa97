"""Runs one rank of llama.cpp.

usage: python -m longboat_llamacpp.launcher serve --model FILE --alias NAME --host ADDRESS --port PORT
           [--rpc HOST:PORT,…] [flags of llama-server]
       python -m longboat_llamacpp.launcher rpc --host ADDRESS --port PORT --threads N
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence

from longboat_llamacpp.servers import (
    Inner,
    asked_to_end,
    built_program,
    is_built,
    refusal,
    start_built,
    start_from_wheel,
    wait_for_ranks,
)

__all__ = ("main",)

KEY_VARIABLE = "LONGBOAT_ENGINE_API_KEY"
_KEEP_ALIVE_S = 3600.0
_SHUTDOWN_S = 1.0
_CRASH_S = 2.0  # a crashed server refuses connections first, and frees what it had, such as a card's memory, after that
_ASKED = (0, -signal.SIGTERM, -signal.SIGINT)  # exit codes of a server that was asked to end


def main() -> None:
    """Run the rank that the command line names; exits when it ends."""
    parser = argparse.ArgumentParser(prog="longboat_llamacpp", allow_abbrev=False)
    roles = parser.add_subparsers(dest="role", required=True)
    serve = roles.add_parser("serve", allow_abbrev=False)
    for name in ("--model", "--hf-repo", "--hf-file", "--alias", "--rpc", "--tensor-split"):
        serve.add_argument(name, default="")
    rpc = roles.add_parser("rpc", allow_abbrev=False)
    rpc.add_argument("--threads", default="1")
    for each in (serve, rpc):
        each.add_argument("--host", required=True)
        each.add_argument("--port", type=int, required=True)
    args, rest = parser.parse_known_args()
    if args.role == "rpc":
        program = built_program("ggml-rpc-server")
        words = ["--host", args.host, "--port", str(args.port), "--threads", args.threads]
        os.execv(program, [program, *words])  # noqa: S606
    asyncio.run(_serve(args, rest))


async def _serve(args: argparse.Namespace, rest: Sequence[str]) -> None:
    from aiohttp import web

    from longboat_llamacpp.front_end import FrontEnd

    inner = await _started(args, rest)
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    app = FrontEnd(inner.url, inner.key, os.environ.get(KEY_VARIABLE, "")).application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, keepalive_timeout=_KEEP_ALIVE_S)
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port, shutdown_timeout=_SHUTDOWN_S).start()
    print(f"longboat: llama.cpp is served at {args.host}:{args.port}", flush=True)
    await _end_with(inner, asked)


async def _started(args: argparse.Namespace, rest: Sequence[str]) -> Inner:
    model = args.model
    if args.hf_repo:
        from longboat_llamacpp.hub import fetched

        model = await asyncio.to_thread(fetched, args.hf_repo, args.hf_file)
    print(f"longboat: loading {model}", flush=True)
    if not args.rpc and not is_built():
        return await asyncio.to_thread(start_from_wheel, model, args.alias, rest)
    return await start_built(model, args.alias, [*await _ranks(args), *rest])


async def _ranks(args: argparse.Namespace) -> list[str]:
    """Return the words about the other ranks, once all of them listen."""
    if not args.rpc:
        return []
    await asyncio.to_thread(wait_for_ranks, args.rpc.split(","))
    return ["--rpc", args.rpc, *(("--tensor-split", args.tensor_split) if args.tensor_split else ())]


async def _end_with(inner: Inner, asked: asyncio.Event) -> None:
    """Exit after a signal or with the server: with 0 where one of them was asked to end.

    A server that takes no more connections crashed, or was asked to end and waits for its responses.
    """
    process, signalled = inner.process, asyncio.ensure_future(asked.wait())
    ends = {signalled, asyncio.ensure_future(refusal(inner.url))}
    if process is None:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        os._exit(0)  # the wheel's server would wait for its running requests
    server = asyncio.ensure_future(process.wait())
    ends.add(asyncio.ensure_future(asked_to_end(process.pid)))
    await asyncio.wait({server, *ends}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({server, signalled}, timeout=_CRASH_S, return_when=asyncio.FIRST_COMPLETED)
    if process.returncode is None:
        process.kill()
        await asyncio.wait({server}, timeout=_CRASH_S)  # a server that dumps its core is not ended by this
        os._exit(0 if asked.is_set() or process.returncode == -signal.SIGKILL else 1)
    print(f"longboat: llama-server ended with {process.returncode}", flush=True)
    os._exit(0 if asked.is_set() or process.returncode in _ASKED else 1)


if __name__ == "__main__":
    main()
