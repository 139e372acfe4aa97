"""Which cluster a command talks to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from longboat.cli.shared import cluster_at_hand
from longboat.cluster.fleet.serve_rest import DashboardAwayError, ServeRest
from longboat.cluster.host.cluster_token import HeadTroubleError
from longboat.cluster.host.record import ClusterRecord, save_record
from longboat.core.errors import ClusterError


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("RAY_ADDRESS", *cluster_at_hand.TOKEN_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "run"))
    word = tmp_path / "ray_current_cluster"
    monkeypatch.setattr(cluster_at_hand, "RAY_WORD", word)
    return word


def test_a_machine_without_a_cluster_has_none() -> None:
    assert cluster_at_hand.cluster_env() is None


def test_the_address_in_the_environment_wins_and_takes_the_token_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/t")
    assert cluster_at_hand.cluster_env() == {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_AUTH_TOKEN_PATH": "/t"}


def test_a_cluster_that_plain_ray_started_is_found(nowhere: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        nowhere.write_text(address)
        assert cluster_at_hand.cluster_env() == {"RAY_ADDRESS": address}
    assert cluster_at_hand.cluster_env() is None, "nobody listens there any more"


def test_word_of_a_cluster_from_another_user_does_not_count(nowhere: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere.write_text(f"127.0.0.1:{listener.getsockname()[1]}")
        assert cluster_at_hand.word_of_ray(nowhere, os.getuid())
        assert not cluster_at_hand.word_of_ray(nowhere, os.getuid() + 1)


def test_dashboard_that_is_away_is_told_with_what_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    with pytest.raises(DashboardAwayError) as away:
        ServeRest("http://127.0.0.1:9", "").details()
    assert cluster_at_hand.explained(away.value) is away.value, "this machine is no node"
    kept = ClusterRecord(
        role="head",
        address="127.0.0.1",
        interface="lo",
        gcs_address="127.0.0.1:6379",
        run=str(tmp_path / "run"),
        temp_dir=str(tmp_path / "ray"),
        token_file="",
        started_by_up=True,
        phase="up",
    )
    save_record(kept.with_runner(os.getpid()))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster_at_hand.explained(away.value) is away.value, "another cluster is meant"
    monkeypatch.setenv("RAY_ADDRESS", kept.gcs_address)  # as a session of Ray leaves it
    error = cluster_at_hand.explained(away.value)
    assert "this machine is the local cluster that longboat up started" in error.message
    assert "dashboard at http://127.0.0.1:9 does not answer" in error.message
    assert "comes back by itself within seconds" in error.hint
    silent = cluster_at_hand._explained(HeadTroubleError("it did not answer", hint="kill -CONT"))
    assert silent.hint == "kill -CONT", "a head that is stopped does not come back by itself"
    other = ClusterError("no fleet is up on this cluster")
    assert cluster_at_hand.explained(other) is other
