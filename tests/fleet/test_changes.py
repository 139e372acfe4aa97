"""Planned changes under load: updates, updates that fail, fewer replicas, drains. No answer is lost."""

from __future__ import annotations

import signal

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import Load, num_resumed

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: {kind: fake, options: {itl_ms: %d}, args: [%s]}
    replicas: %d
    resources: {cpus: 0.1}
    update: {drain_s: 1, limit_s: 60}"""


def file(up: FleetLab, *, itl_ms: int = 20, args: str = "", replicas: int = 2) -> str:
    return up.write(FLEET % (itl_ms, args, replicas))


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    lab.must("up", file(lab), "--detach", timeout_s=240)
    return lab


def load(up: FleetLab, max_tokens: int = 60) -> Load:
    return Load(f"http://127.0.0.1:{up.local_port}", "a", max_tokens=max_tokens)


def digests(up: FleetLab) -> list[str]:
    return sorted(replica["digest"] for replica in up.replicas("a"))


def settled(up: FleetLab) -> bool:
    """Nothing changes any more."""
    status = up.status()
    return not status["updating"] and all(r["phase"] in ("ready", "gone", "failed") for r in status["replicas"])


def with_replicas(up: FleetLab, number: int) -> list[str]:
    """The fleet at rest, with this many replicas."""
    up.must("up", file(up, replicas=number), "--detach", timeout_s=200)
    wait_until("nothing changes", lambda: settled(up) and len(up.replicas("a")) == number, 120)
    wait_until("all have proved how they resume", lambda: {r["resume"] for r in up.replicas("a")} == {"carried"}, 120)
    return names(up)


def names(up: FleetLab) -> list[str]:
    return sorted(replica["replica"] for replica in up.replicas("a"))


def test_an_update_under_load_loses_no_answer(up: FleetLab) -> None:
    before = digests(up)
    with load(up) as clients:
        up.must("up", file(up, itl_ms=25), "--detach", timeout_s=200)
        wait_until("the old ones are gone", lambda: settled(up) and len(digests(up)) == 2, 120)
    assert not clients.wrong
    assert clients.num_streams > 8
    assert not set(before) & set(digests(up))


def test_an_update_of_the_only_replica_starts_another_one_first(up: FleetLab) -> None:
    with_replicas(up, 1)
    with load(up) as clients:
        up.must("up", file(up, itl_ms=25, replicas=1), "--detach", timeout_s=200)
        wait_until("the old one is gone", lambda: settled(up) and len(up.replicas("a")) == 1, 120)
    assert not clients.wrong


def test_fewer_replicas_under_load_lose_no_answer(up: FleetLab) -> None:
    """Answers take longer than a replica waits for them: they go on with the one that is left."""
    with_replicas(up, 3)
    with load(up, max_tokens=300) as clients:
        up.must("up", file(up, replicas=1), "--detach", timeout_s=200)
        wait_until("one is left", lambda: settled(up) and len(up.replicas("a")) == 1, 120)
    assert not clients.wrong
    assert num_resumed(up.local_port) > 0


def test_an_update_that_fails_is_taken_back_though_nobody_waits_for_it(up: FleetLab) -> None:
    before = with_replicas(up, 1)
    with load(up) as clients:
        command = up.popen("up", file(up, args="--nonsense", replicas=1), "--detach")
        wait_until("the update has begun", lambda: up.status()["updating"], 60)
        command.send_signal(signal.SIGKILL)
        command.wait(timeout=30)
        wait_until("it is taken back", lambda: up.status()["taken_back"], 120)
    assert not clients.wrong
    assert "nonsense" in up.status()["taken_back"]["a"]["why"]
    wait_until("nothing of it is left", lambda: settled(up), 60)
    assert names(up) == before
    assert "was taken back" in up.must("status")


def test_a_failed_update_says_why_and_the_file_can_be_corrected(up: FleetLab) -> None:
    before = with_replicas(up, 1)
    done = up.cli("up", file(up, args="--rubbish", replicas=1), "--detach")
    assert done.returncode == 4
    assert "was taken back" in done.stderr and "rubbish" in done.stderr
    up.must("up", file(up, replicas=1), "--detach")
    assert not up.status()["taken_back"]
    assert names(up) == before


def test_a_drained_replica_is_replaced_when_its_answers_have_ended(up: FleetLab) -> None:
    victim = with_replicas(up, 2)[0]
    with load(up) as clients:
        assert "is drained" in up.must("drain", "replica", f"a/{victim[-8:]}")
        wait_until("another is ready", lambda: len(up.replicas("a")) == 2, 120)
    assert not clients.wrong
    assert victim not in names(up)
    assert up.cli("drain", "replica", f"a/{victim}").returncode == 2


def test_a_drained_gateway_tells_balancers_and_can_be_used_again(up: FleetLab) -> None:
    host = up.status()["gateways"][0]["hostname"]
    assert "is drained" in up.must("drain", "gateway", host)
    assert up.answers("a"), "who asks all the same is answered"
    assert up.status()["gateways"][0]["draining"]
    up.must("drain", "gateway", host, "--undo")
    wait_until("it is ready again", lambda: not up.status()["gateways"][0]["draining"], 30)
    assert up.cli("drain", "node", host).returncode == 2
