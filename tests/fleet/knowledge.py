"""What gateways know of prompts that another gateway sent: they learn it from the engines alone."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from typing import Any

from fleet.fleet_lab import FleetLab, wait_until
from netlab.lab import Host

__all__ = ("HOLDERS_FIRST", "Knowledge", "known_after_losses")

HOLDERS_FIRST = "dynamo"
"""The routing policy of fleets whose gateways are asked what they know: an idle replica gets the prompts that it holds.

With ``cost``, a gateway may send a prompt past its holder: what the cache saves of so small a model is less than one
host seems slower than the other on a busy machine. Each gateway then sends to another engine, and shows nothing of what
it knows.
"""
KNOWN_DEADLINE_S = 60.0
"""The index is to be right within 10 s; a busy machine takes longer for much else."""
FOUND_DEADLINE_S = 10.0
"""The engine's feed says what was cached after the response."""
MOST_LOST = 3
"""Prompts of which an engine may say nothing, because its feed broke."""
ALIKE = 0.15  # of a prompt's tokens: the last block of each is not whole


class Knowledge:
    """What the far host's gateway knows of prompts that only the near one sent."""

    def __init__(self, near: FleetLab, far: FleetLab, model: str) -> None:
        self._near, self._far, self._model = near, far, model
        self._taught: list[int] = []  # numbers of prompts that the near gateway sent and the far one did not
        self._count = 0
        self._num_lost = 0

    def teach(self, count: int) -> None:
        """Send new prompts through the near gateway."""
        self.heard()
        for number in range(self._count, self._count + count):
            self._note_loss(_chosen(self._near, self._model, number))
        self._taught += range(self._count, self._count + count)
        self._count += count

    def heard(self) -> None:
        """Wait until both gateways follow the feed of each replica."""
        for which, fleet in (("near", self._near), ("far", self._far)):
            took_s = wait_until(f"engines tell the {which} gateway", partial(self._tells, fleet), 90)
            print(f"engines tell the {which} gateway after {took_s:.1f} s")

    def _tells(self, fleet: FleetLab) -> bool:
        rows = _routes(fleet, self._model)
        return bool(rows) and all(row["tells"] for row in rows)

    def look(self) -> tuple[float, float]:
        """Send one of these prompts through the far gateway: which part of it was expected cached, and which found.

        What an engine tells of a prompt is lost where its feed breaks meanwhile, as it does on a machine that stalls:
        then another prompt is sent.
        """
        while True:
            choice = _chosen(self._far, self._model, self._taught.pop())
            expected, found = choice["expected"], choice["happened"]
            if (cached := found["cached_tokens"]) is not None:
                return expected["cached_tokens"] / expected["prompt_tokens"], cached / found["prompt_tokens"]
            self._note_loss(choice)
            self.heard()

    def _note_loss(self, choice: dict[str, Any]) -> None:
        if choice["happened"]["cached_tokens"] is None:
            self._num_lost += 1
            seen = f"{choice}; {_routes(self._near, self._model)}; {_routes(self._far, self._model)}"
            assert self._num_lost <= MOST_LOST, f"engines do not say what was cached: {seen}"

    def learned(self, after: str) -> None:
        """Wait until the far gateway knows a prompt, then see that it knows others and expects none that is lost."""

        self.heard()

        def knows() -> bool:
            time.sleep(0.3)  # there are not many such prompts
            expected, found = self.look()
            return found > 0.0 and abs(expected - found) <= ALIKE

        took_s = wait_until(f"the index is right after {after}", knows, KNOWN_DEADLINE_S)
        looks = [self.look() for _ in range(6)]

        def knows_others() -> bool:
            """An engine that lost events takes its claims back, perhaps just now: what is sent later is known again."""
            if not any(found > 0.0 and expected >= found - ALIKE for expected, found in looks):
                self.teach(4)
                looks.append(self.look())
                return False
            return True

        wait_until(f"others are known after {after}", knows_others, KNOWN_DEADLINE_S)
        print(f"after {after}: right in {took_s:.1f} s, then {looks}")
        assert all(expected <= found + ALIKE for expected, found in looks), after


def _chosen(fleet: FleetLab, model: str, number: int) -> dict[str, Any]:
    """Ask for a completion of a prompt with this number, and return how its replica was chosen.

    ``cached_tokens`` of ``happened`` is None where the engine did not tell it in time.
    """
    draw = random.Random(number)
    prompt = " ".join(f"w{draw.randrange(1000)}" for _ in range(90))
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 2}).encode()
    url = f"http://127.0.0.1:{fleet.local_port}"
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        request_id = answer.headers["x-request-id"]
        answer.read()
    end_s = time.monotonic() + FOUND_DEADLINE_S
    while True:
        with urllib.request.urlopen(f"{url}/admin/v1/requests/{request_id}", timeout=10) as answer:
            choice: dict[str, Any] = json.load(answer)["routing"]["choice"]
        if choice["happened"]["cached_tokens"] is not None or time.monotonic() > end_s:
            print(
                f"prompt {number} at {choice['replica']}: {choice['expected']}, {choice['happened']}, {choice['why']}"
            )
            return choice
        time.sleep(0.05)


def _routes(fleet: FleetLab, model: str) -> list[dict[str, Any]]:
    """Return what a gateway knows of the replicas of a model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.local_port}/admin/v1/routes", timeout=10) as answer:
        return [row for row in json.load(answer)["routes"] if row["model"] == model]


def known_after_losses(near: FleetLab, far: FleetLab, hosts: Sequence[Host], model: str) -> Knowledge:
    """See that the far host's gateway knows what engines hold, also after it and the engine beside it were killed.

    The gateways route by ``HOLDERS_FIRST``.
    """
    far_host = hosts[1]
    at = {_only_rank(replica)["address"]: replica for replica in near.replicas(model)}
    assert set(at) == {host.address for host in hosts}
    known = Knowledge(near, far, model)
    known.teach(40)
    known.learned("the start")
    (gateway,) = (row for row in near.status()["gateways"] if row["address"] == far_host.address)
    far_host.run(["kill", "-KILL", str(gateway["pid"])])
    wait_until("the gateway answers again", lambda: far.answers(model), 60)
    known.learned("the gateway's restart")
    victim = at[far_host.address]
    far_host.run(["kill", "-KILL", str(_only_rank(victim)["pid"])])
    wait_until("both serve again", partial(_are_two, near, model, victim["replica"]), 180)
    known.teach(20)
    known.learned("the engine's restart")
    return known


def _are_two(fleet: FleetLab, model: str, gone: str) -> bool:
    names = [replica["replica"] for replica in fleet.replicas(model)]
    return len(names) == 2 and gone not in names


def _only_rank(replica: dict[str, Any]) -> dict[str, Any]:
    """Return the one rank of a replica that is not split."""
    (rank,) = replica["ranks"]
    return dict(rank)
