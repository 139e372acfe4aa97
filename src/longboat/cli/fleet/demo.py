"""``longboat demo``: from nothing to a streamed answer, with everything that is missing installed on the way."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ("DEMO_FILE", "run_demo")

QUESTION = "What is Longboat?"


DEMO_FILE = Path(__file__).with_name("demo.yaml")
"""The same text as examples/demo.yaml, for those who have only the package."""


def run_demo(file: Path | None, *, once: bool) -> None:
    """Install the engine, bring the fleet of ``file`` (None: ``DEMO_FILE``) up, stream one answer, stay until
    interrupted."""
    from longboat.cli.chat.command import ask
    from longboat.cli.fleet.up import hold, up_in_foreground
    from longboat.cli.shared.gateway_choice import gateway_here

    _install_engine()
    with up_in_foreground(str(file or DEMO_FILE), timeout_s=600.0) as (session, applied):
        report = session.report()
        assert report is not None
        model = applied.fleet.models[0].name
        print(f"\n> {QUESTION}")
        began_s = time.monotonic()
        ask([gateway_here(report.gateways).url], model, [{"role": "user", "content": QUESTION}], 200)
        print(f"\n(streamed in {time.monotonic() - began_s:.1f} s from one of {len(report.replicas)} vLLM replicas)")
        if not once:
            hold(session, applied)


def _install_engine() -> None:
    from longboat.cli.node.engines import run_install

    run_install("vllm")
