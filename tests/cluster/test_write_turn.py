"""The turn to write Serve's applications: what processes of a cluster do to each other's changes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from longboat.cluster.fleet.serve_rest import DashboardAwayError, ServeRest
from longboat.cluster.node import write_turn
from longboat.cluster.node.write_turn import TurnOverError, until_written, writing
from longboat.core.errors import ClusterError


class Store:
    """The store of a cluster's marks."""

    def __init__(self) -> None:
        self.marks: dict[str, bytes] = {}
        self.loses_replies = False
        self.is_away = False
        self._lock = threading.Lock()

    def add(self, name: str, value: bytes) -> bool:
        with self._lock:
            self._check()
            is_new = self.marks.setdefault(name, value) is value
            return is_new and not self.loses_replies

    def put(self, name: str, value: bytes) -> None:
        self._check()
        self.marks[name] = value

    def get(self, name: str) -> bytes | None:
        self._check()
        return self.marks.get(name)

    def remove(self, name: str) -> None:
        self._check()
        self.marks.pop(name, None)

    def _check(self) -> None:
        if self.is_away:
            raise DashboardAwayError("away")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """One store, and threads that stand for processes: they share no lock."""
    store = Store()
    monkeypatch.setattr(write_turn, "_HERE", threading.Semaphore(100))
    monkeypatch.setattr(write_turn, "ray_marks", lambda: store)
    monkeypatch.setattr(write_turn, "LOOK_EVERY_S", 0.001)
    return store


def changed(document: list[int]) -> None:
    """Read a document, and write it changed."""
    with writing():
        read = document[0]
        time.sleep(0.002)
        document[0] = read + 1


def test_a_sign_of_life_that_a_slow_store_takes_after_the_turn_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_turn, "RENEW_S", 0.01)
    asked, may_put, put = threading.Event(), threading.Event(), store.put

    def put_late(name: str, value: bytes) -> None:
        asked.set()
        assert may_put.wait(30)
        put(name, value)

    monkeypatch.setattr(store, "put", put_late)
    with writing():
        assert asked.wait(30)
        (life,) = [thread for thread in threading.enumerate() if thread.name == "write-turn"]
    may_put.set()
    life.join(30)
    assert not store.marks


def test_no_process_undoes_the_change_of_another_one(store: Store) -> None:
    document = [0]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(changed, [document] * 40))
    assert document == [40]
    assert not store.marks


def test_the_turn_of_a_process_that_died_ends_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_turn, "LEASE_S", 1.0)
    store.marks["writing"] = b"dead"
    document = [0]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(changed, [document] * 8))
    assert document == [8]
    assert not store.marks


def test_a_head_that_goes_away_while_a_turn_is_ended_keeps_no_one_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_turn, "LEASE_S", 0.1)
    store.marks["writing"] = b"dead"
    remove, calls = store.remove, []

    def lost_once(name: str) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise DashboardAwayError("away")
        remove(name)

    monkeypatch.setattr(store, "remove", lost_once)
    with pytest.raises(DashboardAwayError), writing():
        pass
    with writing():
        assert list(store.marks) == ["writing"]
    assert not store.marks


def test_a_process_that_comes_back_late_leaves_the_mark_of_the_next(store: Store) -> None:
    with writing():
        store.marks["writing"] = b"next"
    assert store.marks["writing"] == b"next"


def test_a_mark_whose_reply_was_lost_is_the_own_one(store: Store) -> None:
    store.loses_replies = True
    with writing():
        assert store.marks
    assert not store.marks


def test_others_that_keep_the_turn_are_an_error(store: Store) -> None:
    store.marks["writing"] = b"another"
    with pytest.raises(ClusterError, match="other commands have been changing this fleet"), writing(wait_s=0.05):
        pass
    assert store.marks == {"writing": b"another"}


def test_a_head_that_goes_away_undoes_no_change_that_was_made(store: Store) -> None:
    with writing():
        store.is_away = True
    store.is_away = False
    assert store.marks  # until its lease is over


def test_a_process_without_ray_has_the_turn_among_its_threads() -> None:
    document = [0]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(changed, [document] * 8))
    assert document == [8]


def test_a_slow_writer_keeps_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives signs of life, for as long as it writes; one that died gives none."""
    monkeypatch.setattr(write_turn, "LEASE_S", 0.5)
    monkeypatch.setattr(write_turn, "RENEW_S", 0.02)
    with writing():
        with pytest.raises(ClusterError, match="other commands"), writing(wait_s=2.0):
            pass
        assert len(store.marks) == 2
    assert not store.marks


def test_a_writer_that_dies_after_signs_of_life_loses_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_turn, "LEASE_S", 0.1)
    store.marks |= {"writing": b"dead", "writing dead lives": b"7"}
    with writing(wait_s=30.0):
        assert set(store.marks) == {"writing"}
    assert not store.marks


def test_a_thread_waits_for_another_one_only_as_long_as_it_may() -> None:
    with writing(), pytest.raises(ClusterError, match="for 0 s"), writing(wait_s=0.0):
        pass


class Serve(ServeRest):
    """Serve, as far as it takes documents."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "")
        self.written: list[Any] = []

    def _call(self, method: str, path: str, document: dict[str, Any] | None = None) -> bytes:
        self.written.append(document)
        return b""


def test_a_writer_that_wakes_after_its_turn_writes_nothing(store: Store) -> None:
    serve = Serve()
    with writing():
        store.marks["writing"] = b"next"
        with pytest.raises(TurnOverError, match="was stopped while it changed the fleet"):
            serve.put({"of": "the old turn"})
    serve.put({"of": "no turn"})
    assert serve.written == [{"of": "no turn"}]


def test_a_writer_that_was_stopped_between_its_look_and_its_write_warns(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No look can prevent it: Serve takes any document."""
    serve, write = Serve(), Serve._call
    with writing():
        serve.put({"of": "its own turn"})
    assert not caplog.records

    def write_late(self: Serve, *args: Any) -> bytes:
        store.marks["writing"] = b"next"
        return write(self, *args)

    monkeypatch.setattr(Serve, "_call", write_late)
    with writing():
        serve.put({"of": "the old turn"})
    assert "may be undone" in caplog.text
    assert store.marks == {"writing": b"next"}


def test_a_change_whose_turn_is_over_is_made_again_in_the_next_turn(store: Store) -> None:
    serve, has_slept = Serve(), threading.Event()

    def attempt() -> bool:
        with writing():
            if not has_slept.is_set():
                has_slept.set()
                store.marks.pop("writing")
            serve.put({"sleeps": has_slept.is_set()})
        return True

    assert until_written(attempt)
    assert len(serve.written) == 1
    assert not store.marks
