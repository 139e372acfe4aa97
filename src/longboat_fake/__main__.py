"""Runs the fake engine as a process: ``python -m longboat_fake --model NAME --host H --port P``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

import uvloop

from longboat.core.errors import LongboatError
from longboat.core.states import ResumeLevel
from longboat_fake.api.routes import Api
from longboat_fake.engine.gang import follow, lead
from longboat_fake.engine.generator import EngineSettings, FakeEngine
from longboat_fake.engine.step_loop import StepCosts
from longboat_fake.http.server import serve

__all__ = ("main",)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="longboat-fake-engine", description=__doc__)
    parser.add_argument("--model", required=True, help="name that clients use")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--nnodes", type=int, default=1, help="node ranks of the gang")
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=0)
    parser.add_argument("--headless", action="store_true", help="a rank without the API")
    parser.add_argument("--start-s", type=float, default=0.0, help="pretend to load for this long")
    parser.add_argument("--ttft-ms", type=float, default=0.0, help="milliseconds to the first token")
    parser.add_argument("--itl-ms", type=float, default=0.0, help="milliseconds between tokens")
    parser.add_argument("--step-ms", type=float, default=0.0, help="batch continuously: milliseconds of each step, and")
    parser.add_argument("--prompt-token-us", type=float, default=0.0, help="microseconds of each prompt token in it")
    parser.add_argument("--sequence-us", type=float, default=0.0, help="microseconds of each response in it")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="most tokens of a step")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="responses at the same time; others wait")
    parser.add_argument("--kv-blocks", type=int, default=4096, help="KV blocks; requests wait while none is free")
    parser.add_argument("--block-size", type=int, default=32, help="tokens of a KV block")
    parser.add_argument("--max-model-len", type=int, default=32_768, help="tokens of prompt and response together")
    levels = [str(level) for level in ResumeLevel]
    parser.add_argument("--resume", choices=levels, default="carried", help="how it continues another engine's stream")
    parser.add_argument("--poison", default="", help="a word in a prompt that kills the engine at its first step")
    parser.add_argument("--adapters-held", type=int, default=0, help="LoRA adapters in memory; 0: none can be served")
    parser.add_argument("--kv-events", metavar="ENDPOINT", help="publish KV events (ZeroMQ), such as tcp://*:5557")
    return parser


def _step_costs(options: argparse.Namespace) -> StepCosts:
    return StepCosts(
        base_s=options.step_ms / 1e3,
        prompt_token_s=options.prompt_token_us / 1e6,
        sequence_s=options.sequence_us / 1e6,
        batched_tokens=options.max_num_batched_tokens,
    )


def _engine(options: argparse.Namespace) -> tuple[FakeEngine, dict[str, object]]:
    settings = EngineSettings(
        model=options.model,
        ttft_s=options.ttft_ms / 1e3,
        itl_s=options.itl_ms / 1e3,
        max_running=options.max_num_seqs,
        num_blocks=options.kv_blocks,
        block_tokens=options.block_size,
        context_tokens=options.max_model_len,
        resume=ResumeLevel(options.resume),
        poison=options.poison,
        adapters_held=options.adapters_held,
        steps=_step_costs(options) if options.step_ms else None,
    )
    if not options.kv_events:
        return FakeEngine(settings), {}
    from longboat_fake.engine.kv_events import open_publisher  # its libraries are optional

    publisher = open_publisher(options.kv_events)
    return FakeEngine(settings, publisher.publish), {"0": publisher.source()}


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    work = asyncio.create_task(_serve(options))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    work.cancel()


async def _serve(options: argparse.Namespace) -> None:
    _say("loading", f"{options.model}, node rank {options.node_rank} of {options.nnodes}, pid {os.getpid()}")
    await asyncio.sleep(options.start_s / 2)
    if options.node_rank > 0:
        await follow(options.master_addr, options.master_port, options.node_rank)
    engine, kv_sources = _engine(options)
    gang = None
    if options.nnodes > 1:
        gang = await lead(options.master_addr, options.master_port, options.nnodes, engine.gates["gang"])
    _say("warming", options.model)
    await asyncio.sleep(options.start_s / 2)
    api = Api(engine, os.environ.get("LONGBOAT_ENGINE_API_KEY", ""), kv_sources)
    server = await serve(api.handle, options.host, options.port)
    _say("serving", f"http://{options.host}:{options.port}")
    await server.serve_forever()
    del gang


def _say(phase: str, text: str) -> None:
    print(f"phase={phase} {text}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run one rank until it is stopped. Exit code 0 after SIGTERM, 2 for options that cannot work."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.node_rank >= options.nnodes:
        parser.error(f"--node-rank {options.node_rank} is not below --nnodes {options.nnodes}")
    if options.headless != (options.node_rank > 0):
        parser.error("--headless goes with --node-rank above 0, and only with it")
    try:
        uvloop.run(_run(options))
    except LongboatError as error:
        print(f"{error.message}; {error.hint}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"cannot serve: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
