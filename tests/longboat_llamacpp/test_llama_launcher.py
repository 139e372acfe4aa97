"""What the launcher's exit code says of the end of its server: 0 where the server or the launcher was asked to end."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from longboat_llamacpp.flags import apply_flags, server_parser

SCRIPT = """
import asyncio, sys
from longboat_llamacpp.launcher import _end_with
from longboat_llamacpp.servers import Inner, held_back_signals

async def main(shell, event, pause_s):
    with held_back_signals():
        process = await asyncio.create_subprocess_exec("sh", "-c", shell)
    connections, asked = [], asyncio.Event()
    listener = await asyncio.start_server(lambda *streams: connections.append(streams), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    asyncio.get_running_loop().call_later(pause_s, {"asked": asked.set, "closed": listener.close}[event])
    await _end_with(Inner(url=f"http://127.0.0.1:{port}", key="", process=process), asked)

asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
"""


@pytest.mark.parametrize(
    ("shell", "event", "pause_s", "code"),
    [
        ("sleep 2; kill -SEGV $$", "closed", "0.5", 1),  # its port is closed before it is gone
        ("kill -SEGV $$", "closed", "60", 1),
        ("exit 1", "closed", "60", 1),
        ("kill -TERM $$; exec sleep 60", "closed", "60", 0),  # the signal waits: its handler could hang
        ("exec sleep 60", "closed", "0.5", 0),  # it waits for its responses, and answers none of its connections
        ("exec sleep 60", "asked", "0", 0),
    ],
)
def test_a_launcher_that_was_not_asked_to_end_fails_with_its_server(
    shell: str, event: str, pause_s: str, code: int
) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, shell, event, pause_s], timeout=60, check=False)
    assert done.returncode == code


def test_a_value_of_several_words_is_found_in_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = SimpleNamespace(COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY=2)
    monkeypatch.setitem(sys.modules, "xllamacpp", SimpleNamespace(common_reasoning_format=formats))
    params = SimpleNamespace()
    apply_flags(params, server_parser().parse_args(["--reasoning-format", "deepseek-legacy"]))
    assert params.reasoning_format == 2
