"""The policy of fleets whose gateways are asked what they know of engines' caches (``fleet.knowledge``)."""

from __future__ import annotations

from fleets import Fleet, prompt

from fleet.knowledge import HOLDERS_FIRST
from longboat.routing.policies.registry import policy_of


def test_an_idle_holder_gets_its_prompt_however_slow_it_seems() -> None:
    fleet = Fleet(policy_of(HOLDERS_FIRST), 2)
    seconds = {"replica-0": 0.03, "replica-1": 0.2}  # as a gateway on the host of the first sees them
    for number in range(60):
        at = f"replica-{number % 2}"
        wanted, now_s = prompt(f"{number}", chr(200 + number), tokens=110), 0.2 * number
        fleet.router.sent(wanted, at, cached_tokens=0, now_s=now_s)
        fleet.router.first_token(wanted, cached_tokens=0, now_s=now_s + seconds[at])
        fleet.router.ended(wanted, output_tokens=2, now_s=now_s + seconds[at])
    key, choice = fleet.choose(prompt("again", chr(200 + 59), tokens=110), now_s=20.0)
    assert (key, choice.cached_tokens > 0) == ("replica-1", True)
