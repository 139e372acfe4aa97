"""The judgements of a relay on the wire: lost and reordered lines, restarts, and hours of it in a moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.heartbeat.relay_wire import (
    MAX_EVERY_S,
    MIN_EVERY_S,
    Judgements,
    interval_s,
    read_greeting,
    silence_s,
    write_greeting,
)
from longboat.routing.health.liveness import Health, Judgement

KEYS = st.sampled_from(["a", "b", "c", "d"])
JUDGED = st.builds(Judgement, health=st.sampled_from(Health), cause=st.sampled_from(["", "cut", "hung"]))
LOOKS = st.lists(st.dictionaries(KEYS, JUDGED), min_size=1, max_size=12)


def unwell(judgements: Judgements) -> dict[str, tuple[Health, str]]:
    return {key: (judged.health, judged.cause) for key, judged in judgements.unwell.items()}


@given(looks=LOOKS, joins_at=st.integers(0, 11))
def test_a_listener_that_hears_every_line_knows_what_the_relay_knows(
    looks: list[dict[str, Judgement]], joins_at: int
) -> None:
    relay, listener, is_joined = Judgements(), Judgements(), False
    for number, found in enumerate(looks):
        if number == joins_at:
            listener.take(relay.whole())
            is_joined = True
        line = relay.differ(found)
        if line and is_joined:
            listener.take(line)
        if is_joined:
            assert unwell(listener) == unwell(relay)
        assert all(listener.of(key).health is Health.ALIVE for key in set("abcd") - set(relay.unwell) if is_joined)


@given(looks=LOOKS, lost=st.sets(st.integers(0, 11)))
def test_a_lost_or_repeated_line_is_noticed_and_changes_nothing(
    looks: list[dict[str, Judgement]], lost: set[int]
) -> None:
    relay, listener = Judgements(), Judgements()
    listener.take(relay.whole())
    for number, found in enumerate(looks):
        line = relay.differ(found)
        if not line or number in lost:
            continue
        before = unwell(listener)
        if listener.number + 1 == relay.number:
            listener.take(line)
        with pytest.raises(ValueError, match="came after"):
            listener.take(line)
        assert unwell(listener) in (before, unwell(relay))
    listener.take(relay.whole())
    assert unwell(listener) == unwell(relay)


def test_a_restarted_relay_begins_with_all_of_it() -> None:
    listener, old, new = Judgements(), Judgements(), Judgements()
    lost = Judgement(health=Health.LOST, cause="ended", detail="its process has ended", node_rank=1)
    listener.take(old.whole())
    listener.take(old.differ({"a": lost}))
    assert listener.of("a") == lost
    listener.take(new.whole())
    assert listener.of("a").health is Health.ALIVE


def test_words_that_grow_by_the_second_are_no_news() -> None:
    relay = Judgements()
    said = [Judgement(health=Health.SILENT, cause="silent", detail=f"for {number} s") for number in range(3)]
    assert [bool(relay.differ({"a": judged})) for judged in said] == [True, False, False]


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b"\xff", b'{"n":1,"set":{"a":["odd","","",0]}}', b'{"n":"x"}'])
def test_what_is_not_a_line_of_a_relay_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Judgements().take(line)


@pytest.mark.parametrize("num_relays", [1, 16, 250, 400, 1000, 1250, 100_000])
def test_a_gateway_reads_a_bounded_number_of_lines_and_still_finds_a_silent_node_in_time(num_relays: int) -> None:
    every_s = interval_s(num_relays)
    assert MIN_EVERY_S <= every_s <= MAX_EVERY_S
    assert num_relays / every_s <= max(1000.0, num_relays)
    assert silence_s(every_s) >= 2 * every_s, "one late line is no silence"
    assert silence_s(every_s) + 0.6 + 0.1 < 3.0, "a node that is cut off is out of use within 3 s"
    assert read_greeting(write_greeting(b"word\n", every_s)) == (b"word\n", pytest.approx(every_s, abs=0.001))
