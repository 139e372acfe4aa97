"""Tables as changes: whatever is lost, repeated or restarted, a receiver ends with the sender's table."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.errors import UserInputError
from longboat.core.states import Endpoint, EndpointTable
from longboat.core.table_changes import TableKeeper, TableSender, TableUpdate
from longboat.gateway.upstreams.table_document import decode_update, encode_update


def endpoint(number: int, ready: bool = True, capacity: int | None = 8) -> Endpoint:
    url = f"http://h:{number}"
    return Endpoint(model="m", replica=f"r{number}", generation=1, url=url, ready=ready, capacity=capacity)


def table(*endpoints: Endpoint, version: int = 1) -> EndpointTable:
    return EndpointTable(version=version, models=("m",), endpoints=endpoints, relays={"h:1": "k"})


ROWS = st.builds(endpoint, st.integers(0, 6), st.booleans(), st.sampled_from([None, 1, 8]))
TABLES = st.lists(st.lists(ROWS, max_size=6, unique_by=lambda e: e.key), min_size=1, max_size=10)
FATES = st.lists(
    st.sampled_from(["arrives", "is lost", "reply is lost", "receiver restarts"]), min_size=10, max_size=10
)


def sent(update: TableUpdate) -> TableUpdate:
    """Send an update over both of its ways: a call of Ray, and the control socket."""
    copy = pickle.loads(pickle.dumps(update))  # noqa: S301 (as Ray does)
    decoded = decode_update(encode_update(update))
    assert (decoded.number, decoded.base, dict(decoded.slots), decoded.gone) == (
        *(copy.number, copy.base, dict(copy.slots), copy.gone),
    )
    assert decoded.table == copy.table
    return decoded


@given(TABLES, FATES)
def test_a_receiver_has_the_senders_table_after_each_update_that_arrives(
    lists: list[list[Endpoint]], fates: list[str]
) -> None:
    sender, keeper, known = TableSender("e"), TableKeeper(), 0
    for version, (rows, fate) in enumerate(zip(lists, fates, strict=False), start=1):
        now = table(*rows, version=version)
        if fate == "receiver restarts":
            keeper = TableKeeper()
        update = sender.update(now, known)
        if fate == "is lost":
            known = 0  # the call failed
            continue
        is_taken = keeper.take(sent(update))
        known = keeper.known_in("e")
        if not is_taken:
            assert keeper.take(sent(sender.update(now, known))), "after a gap comes the whole table"
            known = keeper.known_in("e")
        assert keeper.table == now
        assert known == sender.number
        if fate == "reply is lost":
            known = 0


@given(TABLES)
def test_updates_that_come_late_or_twice_change_nothing(lists: list[list[Endpoint]]) -> None:
    sender, keeper, known, past = TableSender("e"), TableKeeper(), 0, []
    for version, rows in enumerate(lists, start=1):
        update = sender.update(table(*rows, version=version), known)
        assert keeper.take(update)
        known = keeper.known_in("e")
        for old in past:
            if not old.is_whole:
                assert not keeper.take(old) or old.is_empty
        assert keeper.table == table(*rows, version=version)
        past.append(update)


def test_a_table_that_did_not_change_is_sent_as_nothing() -> None:
    sender = TableSender("e")
    now = table(endpoint(1), endpoint(2))
    first = sender.update(now, 0)
    again = sender.update(dataclasses.replace(now), first.number)
    assert first.is_whole and again.is_empty
    assert again.table.endpoints == ()


def test_one_change_among_many_endpoints_is_sent_alone_and_the_others_stay_the_same_objects() -> None:
    sender, keeper = TableSender("e"), TableKeeper()
    many = [endpoint(number) for number in range(100)]
    keeper.take(sender.update(table(*many), 0))
    changed = [*many[:50], endpoint(50, ready=False), endpoint(51, capacity=2), *many[52:], endpoint(100)]
    update = sender.update(table(*changed, version=2), keeper.number)
    assert [e.replica for e in update.table.endpoints] == ["r50", "r100"]
    assert dict(update.slots) == {many[51].key: 2}
    assert keeper.take(update)
    assert keeper.table is not None
    assert keeper.table.endpoints == tuple(changed)
    assert all(keeper.table.endpoints[number] is many[number] for number in range(50))


def test_a_new_sender_sends_the_whole_table() -> None:
    keeper = TableKeeper()
    keeper.take(TableSender("e").update(table(endpoint(1)), 0))
    update = TableSender("f").update(table(endpoint(2)), keeper.known_in("f"))
    assert update.is_whole
    assert keeper.take(update)
    assert keeper.epoch == "f"


@pytest.mark.parametrize("change", [{"base": "x"}, {"slots": {"a": "b"}}, {"gone": [1]}, {"number": None}])
def test_an_update_that_cannot_be_read_is_refused(change: dict[str, object]) -> None:
    import orjson

    good = orjson.loads(encode_update(TableUpdate(epoch="e", number=2, base=1, table=table())))
    with pytest.raises(UserInputError):
        decode_update(orjson.dumps({**good, **change}))
