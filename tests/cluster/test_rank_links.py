"""Links between ranks as the kernel shows them: its tables are read right, and a lost link is told from a busy peer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longboat.cluster.usage.rank_links import kernel_words, repeating_connections
from longboat.routing.health.links import Connection
from netlab.plugin import MakeLab

REST = "0 0 4711 1 0000000000000000 20 4 0 10 -1"
WELL = f"0: 01004D0A:D18E 02004D0A:1E61 01 00000000:00000000 00:00000000 00000000 {REST}"
REPEATS = f"1: 01004D0A:D18F 02004D0A:1E61 01 00000001:00000000 01:00000084 00000003 {REST}"
ELSEWHERE = f"2: 01004D0A:D190 03004D0A:1E61 01 00000001:00000000 01:00000084 00000004 {REST}"
CONNECTING = f"3: 01004D0A:D191 02004D0A:1E61 02 00000001:00000000 01:00000084 00000004 {REST}"
MAPPED = (
    "4: 0000000000000000FFFF000001004D0A:D192 0000000000000000FFFF000002004D0A:1E61 01 "
    f"00000001:00000000 01:00000084 00000005 {REST}"
)
SIXTH = (
    "5: B80D0120000000000000000001000000:D193 B80D0120000000000000000002000000:1E61 01 "
    f"00000001:00000000 01:00000084 00000006 {REST}"
)


@pytest.mark.skipif(sys.byteorder == "big", reason="the lines are of a host with the other order of bytes")
def test_only_connections_with_peers_that_repeat_data_are_found() -> None:
    lines = [WELL, REPEATS, ELSEWHERE, CONNECTING, MAPPED, SIXTH, "", "nothing"]
    found = list(repeating_connections(lines, kernel_words(["10.77.0.2", "2001:db8::2"])))
    assert found == [
        Connection(inode=4711, peer="10.77.0.2", num_repeats=3),
        Connection(inode=4711, peer="10.77.0.2", num_repeats=5),
        Connection(inode=4711, peer="2001:db8::2", num_repeats=6),
    ]


SERVER = """
import os, socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print(os.getpid(), flush=True)
    conversation, _ = server.accept()
    while conversation.recv(100):
        pass
"""
RANK = """
import os, socket, sys, threading, time
from longboat.cluster.usage.rank_links import RankLinks

def talk():
    with socket.create_connection((sys.argv[1], 7000)) as conversation:
        while True:
            conversation.sendall(b"x")
            time.sleep(0.01)

threading.Thread(target=talk, daemon=True).start()
links, ends_s, worst = RankLinks(os.getpid(), [sys.argv[1]]), time.monotonic() + float(sys.argv[2]), None
while time.monotonic() < ends_s and (worst is None or worst.unacked_s < 2.0):
    worst = links.read()
    time.sleep(0.1)
print(worst.peer, worst.unacked_s >= 2.0)
"""


@pytest.mark.net
@pytest.mark.timeout(120)
def test_a_lost_link_is_told_from_a_peer_that_was_stopped(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    server = two.popen([sys.executable, "-c", SERVER, two.address])
    assert server.stdout is not None
    pid = server.stdout.readline().strip()
    rank = one.popen([sys.executable, "-c", RANK, two.address, "60"])
    two.run(["kill", "-STOP", pid])
    with pytest.raises(subprocess.TimeoutExpired):
        rank.communicate(timeout=5.0)
    two.run(["kill", "-CONT", pid])
    lab.lose(7000)
    assert rank.communicate(timeout=60.0)[0].split() == [two.address, "True"]
