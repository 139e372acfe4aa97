"""Users that the machine does not know, as container engines start processes with any number."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from longboat.cli.model_orders.commands import _order
from longboat.cluster.host.choices import token_path
from longboat.folders import home_folder
from longboat.user import user_home, user_name


@pytest.fixture
def unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be user 12345, whom neither variables nor /etc/passwd name."""

    def not_found(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(pwd, "getpwuid", not_found)


@pytest.mark.usefixtures("unknown_user")
def test_user_that_the_machine_does_not_know_has_a_name_and_a_folder() -> None:
    assert (user_name(), user_home()) == ("12345", Path("/"))
    assert home_folder({}) == Path("/.local/share/longboat")


@pytest.mark.usefixtures("unknown_user")
def test_commands_work_for_a_user_that_the_machine_does_not_know(tmp_path: Path) -> None:
    assert token_path("", {"LONGBOAT_HOME": str(tmp_path)}) == tmp_path / "cluster_token"
    assert _order({"source": "builtin:tiny"}).by.startswith("12345@")


def test_user_that_the_machine_knows_keeps_its_name_and_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ann")
    assert (user_name(), user_home()) == ("ann", tmp_path)
