"""Which logs ``longboat logs`` shows, and what it says where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.cli.look import logs as logs_module
from longboat.cli.look.logs import Log, chosen_logs, new_logs
from longboat.core.errors import ClusterError, UserInputError

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


def test_replicas_that_start_while_logs_are_followed_are_shown_from_their_beginning() -> None:
    shown = [Log("n1", "old-1", 0, offset=7)]
    assert new_logs(shown, FOUND, LIVE, "tiny", None, None) == [replace(log, offset=0) for log in FOUND[1:]]
    assert new_logs(shown, FOUND, LIVE, "tiny", 1, None) == [Log("n2", "new-2", 1, offset=0)]
    assert new_logs(FOUND, FOUND, LIVE, "tiny", None, None) == []
    assert new_logs([], FOUND, [], "tiny", None, None) == [], "what has ended is not shown from its beginning"


class Daemons:
    """The daemons of nodes, and what they return of one log, in turn."""

    def __init__(self, *replies: tuple[int, str] | ClusterError) -> None:
        self.replies = list(replies)

    def ask_daemon(self, *_: object) -> tuple[int, str]:
        reply = self.replies.pop(0)
        if isinstance(reply, ClusterError):
            raise reply
        return reply


def test_followed_lines_are_printed_when_they_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    daemons, logs = Daemons((3, "a\nb"), (5, "b\n")), [Log("n1", "r", 0)]
    logs_module._print_new(daemons, "tiny", logs, 5, follow=True)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "a\n"
    logs_module._print_new(daemons, "tiny", logs, 5, follow=True)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "bb\n"


def test_a_log_that_cannot_be_read_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    away = ClusterError("node n1 does not answer")
    daemons, logs = Daemons(away, away, (2, "a\n"), away), [Log("n1", "r", 0)]
    told = []
    for _ in range(4):
        logs_module._print_new(daemons, "tiny", logs, 5, follow=True)  # type: ignore[arg-type]
        told.append(capsys.readouterr().err)
    assert [bool(line) for line in told] == [True, False, False, True]
    assert "does not answer" in told[0]
