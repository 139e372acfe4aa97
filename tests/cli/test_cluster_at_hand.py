"""Which cluster a command talks to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from longboat.cli.shared import cluster_at_hand


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
