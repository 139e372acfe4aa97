"""``longboat demo``: from nothing to a streamed answer, with everything that is missing installed on the way."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ("run_demo",)

QUESTION = "What is Longboat?"


def run_demo(file: Path, *, once: bool) -> None:
    """Install the engine, bring the fleet of ``file`` up, stream one answer, stay until interrupted."""
    from longboat.cli.chat import ask
    from longboat.cli.up import _print_hint, _stay, up_in_foreground

    _install_engine()
    with up_in_foreground(str(file), timeout_s=600.0) as (session, applied):
        report = session.report()
        assert report is not None
        model = applied.fleet.models[0].name
        print(f"\n> {QUESTION}")
        began_s = time.monotonic()
        ask(report.gateways[0].url, model, [{"role": "user", "content": QUESTION}], 200)
        print(f"\n(streamed in {time.monotonic() - began_s:.1f} s from one of {len(report.replicas)} vLLM replicas)")
        if not once:
            _print_hint()
            _stay(session)


def _install_engine() -> None:
    from longboat.cli.engines import run_install

    run_install("vllm")
