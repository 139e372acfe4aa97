"""Usage by tenant, model and day, in a file."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from counting import START_S

from longboat.core.errors import UserInputError
from longboat.gateway.limits.counters import LocalCounters
from longboat.gateway.records.usage_store import UsageRow, UsageStore, day_of

DAY_S = 86_400

CHILD = """
import sys
from pathlib import Path
from longboat.gateway.records.usage_store import UsageStore
store = UsageStore(Path(sys.argv[1]))
store.open()
for turn in range(20):
    for _ in range(50):
        store.add("ann", "m", now_s=float(sys.argv[2]), prompt_tokens=2, completion_tokens=1)
    store.flush()
store.close()
"""


def opened(path: Path | None) -> UsageStore:
    store = UsageStore(path)
    store.open()
    return store


def spend(
    store: UsageStore, tenant: str = "ann", model: str = "m", *, now_s: float = START_S, tokens: int = 10
) -> None:
    store.add(tenant, model, now_s=now_s, prompt_tokens=tokens, completion_tokens=1, cached_tokens=4)


def test_day_is_utc() -> None:
    assert day_of(0.0) == "1970-01-01"
    assert day_of(DAY_S - 0.5) == "1970-01-01"


def test_report_is_by_day_tenant_and_model(tmp_path: Path) -> None:
    store = opened(tmp_path / "usage.db")
    for tenant, model in (("bob", "m"), ("ann", "n"), ("ann", "m"), ("ann", "m")):
        spend(store, tenant, model)
    spend(store, "ann", "m", now_s=START_S - DAY_S)
    store.flush()
    rows = store.report(2, START_S)
    assert [(r.day, r.tenant, r.model, r.requests) for r in rows] == [
        (day_of(START_S - DAY_S), "ann", "m", 1),
        (day_of(START_S), "ann", "m", 2),
        (day_of(START_S), "ann", "n", 1),
        (day_of(START_S), "bob", "m", 1),
    ]
    assert (rows[1].prompt_tokens, rows[1].completion_tokens, rows[1].cached_tokens) == (20, 2, 8)
    assert len(store.report(1, START_S)) == 3


def test_report_of_one_tenant_has_written_and_new_rows_of_it_alone(tmp_path: Path) -> None:
    store = opened(tmp_path / "usage.db")
    spend(store)
    spend(store, "bob")
    store.flush()
    spend(store, "ann", "n")
    spend(store, "bob", "n")
    assert [(row.tenant, row.model) for row in store.report(1, START_S, "ann")] == [("ann", "m"), ("ann", "n")]


@pytest.mark.parametrize("flushed", [True, False])
def test_report_tells_what_is_written_and_what_is_not(tmp_path: Path, flushed: bool) -> None:
    store = opened(tmp_path / "usage.db")
    spend(store)
    store.flush()
    spend(store)
    if flushed:
        store.flush()
    assert store.all_totals_today(START_S)["ann"] == 22


def test_store_without_a_file_keeps_everything_in_memory() -> None:
    store = opened(None)
    spend(store)
    store.flush()
    assert store.all_totals_today(START_S)["ann"] == 11 and store.problem is None


def test_daily_budget_survives_a_restart(tmp_path: Path) -> None:
    first = opened(tmp_path / "usage.db")
    spend(first, tokens=900)
    spend(first, tokens=5000, now_s=START_S - DAY_S)
    first.close()
    counters = LocalCounters()
    counters.restore_today(opened(tmp_path / "usage.db").all_totals_today(START_S), now_s=START_S)
    assert counters.counts_of("ann", START_S).tokens_today == 901


def test_processes_add_up_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    command = [sys.executable, "-c", CHILD, str(path), str(START_S)]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    [row] = opened(path).report(1, START_S)
    assert (row.requests, row.prompt_tokens, row.completion_tokens) == (3000, 6000, 3000)


def test_random_additions_and_flushes_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    stores = [opened(tmp_path / "usage.db") for _ in range(2)]
    total = 0
    for _ in range(10_000):
        tokens = chance.randrange(100)
        total += tokens
        store = chance.choice(stores)
        store.add(chance.choice("abc"), chance.choice("mn"), now_s=START_S, prompt_tokens=tokens, completion_tokens=0)
        if chance.random() < 0.02:
            store.flush()
    for store in stores:
        store.close()
    rows = opened(tmp_path / "usage.db").report(1, START_S)
    assert sum(row.requests for row in rows) == 10_000
    assert sum(row.prompt_tokens for row in rows) == total


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_file_that_is_no_usage_file_is_refused_with_a_hint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "usage.db").write_bytes(content)
    with pytest.raises(UserInputError) as caught:
        opened(tmp_path / "usage.db")
    assert caught.value.hint and "usage.db" in caught.value.message


def test_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "usage.db")) as other:
        other.execute("CREATE TABLE notes (text)")
        other.commit()
    with pytest.raises(UserInputError, match="another program"):
        opened(tmp_path / "usage.db")


def test_file_that_fails_later_stops_the_writing_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage.db"
    store = opened(path)
    spend(store)
    store.flush()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("ALTER TABLE usage RENAME TO hidden")
        spend(store)
        store.flush()
        store.flush()
        assert store.problem
        assert store.all_totals_today(START_S)["ann"] == 11  # this process's own
        other.execute("ALTER TABLE hidden RENAME TO usage")
    store.flush()
    assert store.problem is None
    assert store.all_totals_today(START_S)["ann"] == 22
    assert caplog.text.count("cannot be used") == 1


def test_file_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    store = opened(path)
    spend(store)
    store.flush()
    for file in tmp_path.iterdir():
        file.rename(tmp_path.parent / f"moved-{file.name}")
    spend(store)
    store.close()
    assert opened(path).all_totals_today(START_S) == {"ann": 11}


@pytest.mark.parametrize("flushed", [True, False])
def test_what_was_paid_keeps_its_currency_when_the_price_gets_another(tmp_path: Path, flushed: bool) -> None:
    store = opened(tmp_path / "usage.db")
    for currency, nanos in (("USD", 7), ("EUR", 5), ("USD", 1)):
        store.add_responses([("ann", "m", START_S, 2, 1, 0, nanos, currency)])
        if flushed:
            store.flush()
    found = [(row.currency, row.requests, row.cost_nanos) for row in store.report(1, START_S)]
    assert found == [("EUR", 1, 5), ("USD", 2, 8)]


def test_file_of_version_2_keeps_its_rows_and_gets_currencies(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        counts = "requests, prompt_tokens, completion_tokens, cached_tokens, sent, cost_nanos"
        old.execute(
            f"CREATE TABLE usage (day, tenant, model, {counts}, PRIMARY KEY (day, tenant, model)) WITHOUT ROWID"
        )
        old.execute("INSERT INTO usage VALUES (?, 'ann', 'm', 1, 2, 3, 4, 5, 6)", (day_of(START_S),))
        old.execute("PRAGMA user_version = 2")
        old.commit()
    store = opened(path)
    store.add("ann", "m", now_s=START_S, prompt_tokens=1, completion_tokens=1, cost_nanos=9, currency="EUR")
    store.close()
    before, after = opened(path).report(1, START_S)
    assert before == UsageRow(day_of(START_S), "ann", "m", "", 1, 2, 3, 4, 5, 6)
    assert (after.currency, after.requests, after.cost_nanos) == ("EUR", 1, 9)


async def test_run_flushes_when_it_ends(tmp_path: Path) -> None:
    store = opened(tmp_path / "usage.db")
    task = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    spend(store)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert opened(tmp_path / "usage.db").all_totals_today(START_S)["ann"] == 11


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 100])
def test_pages_have_whole_days_and_together_every_row_once(tmp_path: Path, most: int, has_file: bool) -> None:
    store = opened(tmp_path / "usage.sqlite" if has_file else None)
    now_s = START_S + 5 * DAY_S
    for day, num_tenants in enumerate((2, 1, 4, 0, 2, 1)):
        for tenant in range(num_tenants):
            spend(store, f"t{tenant}", now_s=START_S + day * DAY_S)
        if day == 2:
            store.flush()
    wanted, until, found, is_cut = store.report(6, now_s), "", list[UsageRow](), True
    while is_cut:
        rows, is_cut = store.page(6, now_s, until=until, most=most)
        assert len(rows) <= most or len({row.day for row in rows}) == 1
        found = rows + found
        if is_cut:
            until = (datetime.date.fromisoformat(rows[0].day) - datetime.timedelta(days=1)).isoformat()
    assert found == wanted
    assert len(wanted) == 10


def test_report_adds_what_is_not_written_to_the_days_that_it_counts_for(tmp_path: Path) -> None:
    store = opened(tmp_path / "usage.sqlite")
    for day in range(4):
        spend(store, now_s=START_S + day * DAY_S)
        spend(store, "bea", now_s=START_S + day * DAY_S)
    store.flush()
    spend(store, "abe", now_s=START_S + 2 * DAY_S, tokens=3)
    spend(store, "bea", now_s=START_S + 2 * DAY_S, tokens=5)
    rows = store.report(4, START_S + 3 * DAY_S)
    days = [day_of(START_S + day * DAY_S) for day in range(4)]
    others = [(day, tenant, 10) for day in days for tenant in ("ann", "bea")]
    others[others.index((days[2], "bea", 10))] = (days[2], "bea", 15)
    assert [(row.day, row.tenant, row.prompt_tokens) for row in rows] == sorted([*others, (days[2], "abe", 3)])
    assert store.report(4, START_S + 3 * DAY_S) == rows
