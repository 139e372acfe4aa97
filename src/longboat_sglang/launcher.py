"""Runs SGLang's server: ``python -m longboat_sglang.launcher --model-path MODEL …``.

SGLang starts its processes by importing the main module again, so what they need before SGLang is imported stands at
this module's top level.
"""

from __future__ import annotations

import os
import sys

from longboat_sglang import metrics_folder, without_cuda

__all__ = ("main",)

without_cuda.prepare()


def main() -> None:
    """Serve with the arguments in ``sys.argv`` until the server ends."""
    metrics_folder.prepare()
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from longboat_sglang import server

    metrics_folder.keep_folder()
    server.install()  # not in the plugin, whose errors SGLang only logs: a server without a key must not start
    load_plugins()
    server_args = prepare_server_args(sys.argv[1:])
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
