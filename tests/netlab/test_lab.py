"""The network lab does what it says, above all when things are cut and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from netlab.lab import Host, Lab, why_unavailable
from netlab.plugin import MakeLab

pytestmark = pytest.mark.net

_SERVER = """
import socketserver

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 20):
            self.request.sendall(data)

socketserver.ThreadingTCPServer.daemon_threads = True
server = socketserver.ThreadingTCPServer(("", 7000), Echo)
print("listening", flush=True)
server.serve_forever()
"""
_ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as conversation:
    conversation.sendall(b"ahoy")
    print(conversation.recv(4).decode())
"""


def _listen(host: Host) -> subprocess.Popen[str]:
    server = host.popen([sys.executable, "-c", _SERVER])
    assert server.stdout is not None and server.stdout.readline() == "listening\n"
    return server


def _ask(asking: Host, asked: Host, timeout: float = 5.0) -> str:
    return asking.python(_ASK, asked.address, str(timeout)).strip()


def _eventually(check: Callable[[], bool], what: str, deadline_s: float = 20.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_hosts_reach_each_other_by_address_and_name(netlab: MakeLab) -> None:
    one, two, three = netlab(3).hosts
    _listen(two)
    assert _ask(one, two) == _ask(three, two) == "ahoy"
    assert one.python("import socket; print(socket.gethostbyname('h2'), socket.gethostname())") == "10.77.0.2 h1\n"


def test_hosts_have_processes_disks_and_shared_memory_of_their_own(netlab: MakeLab) -> None:
    one, two = netlab(2).hosts
    sleeper = one.popen(["sleep", "1000"])
    _eventually(lambda: "sleep 1000" in one.processes().values(), "the command does not start")
    assert two.processes() == {}
    assert one.run(["sh", "-c", "echo x >/dev/shm/mine; echo $LONGBOAT_RUN $TMPDIR"]).stdout.split() == [
        str(one.folder / "run"),
        str(one.folder / "tmp"),
    ]
    assert two.run(["ls", "/dev/shm"]).stdout == ""
    sleeper.kill()
    sleeper.wait(10)
    _eventually(lambda: one.processes() == {}, "the process outlives its handle")


def test_signals_and_exit_codes_pass_through(netlab: MakeLab) -> None:
    (host,) = netlab(1).hosts
    assert host.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    assert host.run(["no-such-command"], check=False).returncode == 127
    sleeper = host.popen(["sleep", "1000"])
    _eventually(lambda: "sleep 1000" in host.processes().values(), "the command does not start")
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_command_that_takes_too_long_is_killed(netlab: MakeLab) -> None:
    (host,) = netlab(1).hosts
    with pytest.raises(subprocess.TimeoutExpired):
        host.run(["sleep", "1000"], timeout=0.5)
    _eventually(lambda: host.processes() == {}, "the command lives on")


def test_outside_is_unreachable_without_a_wait(netlab: MakeLab) -> None:
    (host,) = netlab(1).hosts
    code = "import socket; print(socket.socket().connect_ex(('198.51.100.7', 80)))"
    assert int(host.python(code, timeout=10)) != 0


def test_cut_link_swallows_packets_and_restore_heals(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    _listen(two)
    talk = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as conversation:
    while True:
        if line := open(sys.argv[2], "rb").readline():  # nothing where the last writer has not closed yet
            conversation.sendall(line)
            print(conversation.recv(100).decode(), end="", flush=True)
"""
    pipe = one.folder / "questions"
    os.mkfifo(pipe)
    talker = one.popen([sys.executable, "-c", talk, two.address, str(pipe)])
    pipe.write_text("before\n")
    assert talker.stdout is not None and talker.stdout.readline() == "before\n"
    lab.cut(two)
    pipe.write_text("during\n")
    with pytest.raises(AssertionError, match=r"TimeoutError|timed out"):
        _ask(one, two, timeout=1.0)
    assert "state UP" in two.run(["ip", "link", "show", "eth0"]).stdout
    assert talker.poll() is None
    lab.restore(two)
    assert talker.stdout.readline() == "during\n"
    assert _ask(one, two) == "ahoy"


def test_connections_of_a_port_are_lost_and_others_are_not(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    _listen(two)
    assert _ask(one, two) == "ahoy"
    lab.lose(7001)
    assert _ask(one, two) == "ahoy"
    lab.lose(7000)
    with pytest.raises(AssertionError, match=r"TimeoutError|timed out"):
        _ask(one, two, timeout=1.0)


def test_rate_of_a_link_is_limited(netlab: MakeLab) -> None:
    lab = netlab(2, rate_bits_per_s=8_000_000)
    one, two = lab.hosts
    send = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000)) as conversation:
    begin, left = time.monotonic(), 1_000_000
    conversation.sendall(b"x" * left)
    while left:
        left -= len(conversation.recv(1 << 20))
    print(time.monotonic() - begin)
"""
    _listen(two)
    assert float(one.python(send, two.address)) > 0.5
    for host in lab.hosts:
        lab.set_rate(host, 10_000_000_000)
    assert float(one.python(send, two.address)) < 0.5


def test_killed_host_leaves_no_process_and_can_boot_again(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    server = _listen(two)
    two.run(["sh", "-c", "echo kept >$HOME/file; setsid sleep 1000 >/dev/null 2>&1 &"])
    first = two.namespaces
    assert first is not None
    lab.kill_host(two)
    assert server.wait(10) == -signal.SIGKILL
    assert not _is_alive(first.pid)
    lab.boot(two)
    assert two.processes() == {}
    assert two.run(["sh", "-c", "cat $HOME/file"]).stdout == "kept\n"
    _listen(two)
    assert _ask(one, two) == "ahoy"


def test_power_off_tells_nobody(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    _listen(two)
    wait = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as conversation:
    print("connected", flush=True)
    conversation.settimeout(2)
    try:
        print("heard", conversation.recv(1))
    except TimeoutError:
        print("silence")
"""
    waiter = one.popen([sys.executable, "-c", wait, two.address])
    assert waiter.stdout is not None and waiter.stdout.readline() == "connected\n"
    lab.power_off(two)
    assert waiter.stdout.readline() == "silence\n"


def test_host_that_was_powered_off_boots_again(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    for _ in range(5):
        lab.power_off(two)
        lab.boot(two)
        _listen(two)
        assert _ask(one, two) == "ahoy"


def test_forwarded_port_leads_into_the_host(netlab: MakeLab) -> None:
    lab = netlab(1)
    (host,) = lab.hosts
    (host.folder / "page").write_text("ahoy")
    host.popen([sys.executable, "-m", "http.server", "8080"], output=subprocess.DEVNULL)
    port = lab.forward(host, 8080)

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=5).read() == b"ahoy")
        except OSError:
            return False

    _eventually(answers, "nothing comes through the forwarded port")


def test_close_leaves_nothing_behind() -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    before = _interfaces()
    with Lab(2) as lab:
        pids = [host.namespaces.pid for host in lab.hosts if host.namespaces]
        lab.hosts[0].run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"])
    assert not any(map(_is_alive, pids))
    assert not lab.folder.exists()
    assert _interfaces() == before


_OWNER = """
import json, os, sys, time
from netlab.lab import Lab
lab = Lab(2)
for host in lab.hosts:
    host.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"])
sleepers = [host.popen(["sleep", "1000"]) for host in lab.hosts]
lab.forward(lab.hosts[0], 80)
pids = [host.namespaces.pid for host in lab.hosts] + [lab._switch.pid]
networks = [os.readlink(f"/proc/{pid}/ns/net") for pid in pids]
pids += [sleeper.pid for sleeper in sleepers]
print(json.dumps({"pids": pids, "networks": networks, "folder": str(lab.folder)}), flush=True)
time.sleep(1000)
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    before = _interfaces()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], env=env, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    lab = json.loads(owner.stdout.readline())
    assert all(map(_is_alive, lab["pids"]))
    owner.kill()
    owner.wait(10)
    _eventually(lambda: not any(map(_is_alive, lab["pids"])), "processes are left")
    _eventually(lambda: not _networks() & set(lab["networks"]), "network namespaces are left")
    _eventually(lambda: not Path(lab["folder"]).exists(), "the folder is left")
    assert _interfaces() == before


def _interfaces() -> set[str]:
    """Network cards of the namespace that the tests run in."""
    return set(os.listdir("/sys/class/net"))


def _networks() -> set[str]:
    """Network namespaces that any process is in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns" / "net"))
            except OSError:
                continue
    return found
