"""What ``longboat cluster add`` and ``remove`` leave in the hosts file."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat.cli.hosts import run
from longboat.core.errors import ClusterError, UserInputError
from longboat.hosts.remote.bring_up import Observer, Raised
from longboat.spec.files.hosts_file import HostsFile

TEXT = "# ours\nhosts:\n  - {host: one, role: head}\n  - two\ninstall: {index: longboat==0.1.0}\n"


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_host_is_in_the_file_once_something_is_done_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planned: bool
) -> None:
    async def bring_up(file: HostsFile, folder: Path, observer: Observer, *, dry_run: bool = False) -> Raised:
        assert [host.host for host in file.hosts] == ["one", "two", "three"]
        if is_planned:
            observer.planned(())
        raise ClusterError("the head's token cannot be read")

    monkeypatch.setattr(run, "bring_up", bring_up)
    path = tmp_path / "hosts.yaml"
    path.write_text(TEXT)
    path.chmod(0o640)
    (tmp_path / "link.yaml").symlink_to(path.name)
    with pytest.raises(ClusterError, match="token"):
        run.run_add(tmp_path / "link.yaml", "three")
    assert path.read_text() == (TEXT.replace("- two", "- two\n  - three") if is_planned else TEXT)
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(found.name for found in tmp_path.iterdir()) == ["hosts.yaml", "link.yaml"]


def test_a_host_that_cannot_leave_the_file_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_down(*_: object) -> list[object]:
        raise AssertionError("nothing may be removed")

    monkeypatch.setattr(run, "take_down", take_down)
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [one, two]\ninstall: {index: longboat==0.1.0}\n")
    with pytest.raises(UserInputError, match="a list in one line"):
        run.run_remove(path, "two")
