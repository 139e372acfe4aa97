"""``longboat demo``: from nothing to a streamed answer, with everything that is missing installed on the way."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from longboat.core.errors import UserInputError

__all__ = ("DEMO_FILE", "demo_text", "run_demo")

QUESTION = "What is Longboat?"


DEMO_FILE = Path(__file__).with_name("demo.yaml")
"""The same text as examples/demo.yaml, for those who have only the package."""


def run_demo(file: Path | None, *, once: bool, engine: str = "vllm") -> None:
    """Install the engine, bring the fleet of ``file`` up, stream one answer, stay until interrupted.

    file: None means ``DEMO_FILE`` with ``engine`` in it
    """
    if file is not None and (file.is_dir() or not file.exists()):
        hint = "name a fleet file, or leave it out: longboat demo"
        raise UserInputError(f"there is no fleet file {file}", hint=hint)
    _install(engine)
    if file is not None:
        _serve(str(file), engine, once=once)
        return
    with tempfile.NamedTemporaryFile("w", prefix="demo-", suffix=".yaml") as written:
        written.write(demo_text(engine))
        written.flush()
        _serve(written.name, engine, once=once)


def demo_text(engine: str) -> str:
    """Return the fleet file of the demo, served by ``engine``."""
    text = DEMO_FILE.read_text()
    return text if engine == "vllm" else text.replace("    replicas:", f"    engine: {{kind: {engine}}}\n    replicas:")


def _serve(file: str, engine: str, *, once: bool) -> None:
    from longboat.cli.chat.command import ask
    from longboat.cli.fleet.up import hold, up_in_foreground
    from longboat.cli.shared.gateway_choice import gateway_here

    title = {"vllm": "vLLM"}.get(engine, engine)
    with up_in_foreground(file, timeout_s=600.0) as (session, applied):
        report = session.report()
        assert report is not None
        model = applied.fleet.models[0].name
        print(f"\n> {QUESTION}")
        began_s = time.monotonic()
        ask([gateway_here(report.gateways).url], model, [{"role": "user", "content": QUESTION}], 200)
        print(f"\n(streamed in {time.monotonic() - began_s:.1f} s from one of {len(report.replicas)} {title} replicas)")
        if not once:
            hold(session, applied)


def _install(engine: str) -> None:
    from longboat.cli.node.engines import run_install

    run_install(engine)
