"""Which logs ``longboat logs`` shows, and what it says where there are none."""

from __future__ import annotations

import pytest

from longboat.cli.look.logs import Log, chosen_logs
from longboat.core.errors import UserInputError

FOUND = [Log("n1", "old-1", 0), Log("n1", "new-2", 0), Log("n2", "new-2", 1)]
LIVE = [("tiny", "new-2"), ("big", "x")]


def chosen(rank: int | None = None, replica: str | None = None) -> list[tuple[str, int]]:
    return [(log.replica, log.node_rank) for log in chosen_logs(FOUND, LIVE, "tiny", rank, replica)]


def test_logs_are_those_of_the_replicas_that_run() -> None:
    assert chosen() == [("new-2", 0), ("new-2", 1)]
    assert chosen(rank=1) == [("new-2", 1)]


def test_a_replica_that_ended_is_shown_by_its_name() -> None:
    assert chosen(replica="old") == chosen(replica="1") == [("old-1", 0)]


def test_a_replica_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UserInputError, match="no replica of tiny is named 'zzz'") as caught:
        chosen(replica="zzz")
    assert caught.value.hint == "replicas with logs: new-2, old-1"


def test_a_rank_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UserInputError, match="tiny has no rank 7") as caught:
        chosen(rank=7)
    assert caught.value.hint == "ranks with logs: 0, 1"


def test_a_model_without_logs_is_told_with_the_models_that_run() -> None:
    with pytest.raises(UserInputError, match="no engine of 'tyni' has written a log") as caught:
        chosen_logs([], LIVE, "tyni", None, None)
    assert caught.value.hint == "models that run: big, tiny"
