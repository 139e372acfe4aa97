"""Tests of the shipped locks, and of the message for a missing CPU build of torch. uv is replaced by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

import longboat
from longboat.core.errors import TransferError, UserInputError
from longboat.engines.environments.engine_lock import (
    Uv,
    check_torch_cpu,
    num_packages,
    recipe_of,
    resolve,
    shipped_lock,
)
from longboat.engines.environments.package_sources import PackageSources
from longboat.engines.registry import installable

SHIPPED = sorted((Path(longboat.__file__).parent / "engines").glob("*/locks/*.txt"))


def make_uv(tmp_path: Path, script: str) -> Uv:
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Uv(program=str(program), arguments=("--find-links", "/wheels"))


def test_default_version_has_a_lock_for_each_platform() -> None:
    for kind, adapter in installable().items():
        assert adapter.recipe is not None
        for platform in adapter.recipe.distributions:
            assert shipped_lock(kind, adapter.recipe.version, platform)
    assert shipped_lock("vllm", "0.0.1", "cpu") is None


@pytest.mark.parametrize("lock", SHIPPED, ids=lambda path: path.name)
def test_lock_names_no_place_to_get_packages_from(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


@pytest.mark.parametrize("lock", SHIPPED, ids=lambda path: path.name)
def test_lock_pins_every_package_with_a_hash(lock: Path) -> None:
    text = lock.read_text()
    assert num_packages(lock) >= 13
    packages = [block for block in text.split("\n") if block and not block.startswith((" ", "#"))]
    assert all(package.endswith(" \\") and "==" in package for package in packages)


@pytest.mark.parametrize("lock", SHIPPED, ids=lambda path: path.name)
def test_lock_has_the_torch_of_its_platform_and_nothing_that_binds_it(lock: Path) -> None:
    text = f"\n{lock.read_text()}"
    if not recipe_of(lock.name.partition("-")[0]).pins_torch:
        assert "\ntorch==" not in text
        return
    assert ("\ntorch==2.13.0+cpu " in text) == lock.stem.endswith("-cpu")
    assert ("\nnvidia-cu" in text) == lock.stem.endswith("-cuda")
    for name in ("torchaudio", "torchcodec") if lock.name.startswith("vllm") else ():
        assert f"\n{name}==" not in text


def test_what_only_cuda_uses_is_left_out_on_cpus() -> None:
    text = {lock.name: lock.read_text() for lock in SHIPPED}
    for name in ("flashinfer-python", "sgl-deep-gemm", "sglang-kernel"):
        assert f"\n{name}==" not in text["sglang-0.5.23-cpu.txt"]
        assert f"\n{name}==" in text["sglang-0.5.23-cuda.txt"]


def test_missing_cpu_torch_is_told_with_the_variable_that_helps(tmp_path: Path) -> None:
    lock = tmp_path / "x-cpu.txt"
    lock.write_text("torch==2.13.0+cpu \\\n    --hash=sha256:00\ntqdm==1 \\\n    --hash=sha256:01\n")
    with pytest.raises(UserInputError, match=r"torch==2\.13\.0\+cpu") as caught:
        check_torch_cpu(lock, "/python", make_uv(tmp_path, "exit 1"))
    assert "LONGBOAT_TORCH_CPU" in caught.value.hint


def test_lock_without_cpu_torch_is_never_installed_on_a_cpu(tmp_path: Path) -> None:
    lock = tmp_path / "x-cpu.txt"
    lock.write_text("torch==2.13.0 \\\n    --hash=sha256:00\n")
    with pytest.raises(UserInputError, match="does not pin a CPU build"):
        check_torch_cpu(lock, "/python", make_uv(tmp_path, "exit 0"))


@pytest.mark.parametrize(("platform", "torch"), [("cpu", "torch==2.9.1+cpu"), ("cuda", "torch==2.9.1,!=2.9.1+cpu")])
def test_resolving_binds_torch_to_the_platform(tmp_path: Path, platform: str, torch: str) -> None:
    script = f"""
while [ "$1" ]; do
  [ "$1" = --override ] && cat "$2" >> {tmp_path}/overrides
  [ "$1" = --output-file ] && echo torch==2.9.1 > "$2"
  shift
done"""
    resolve("vllm", "0.30.0", platform, tmp_path / "lock", make_uv(tmp_path, script))
    overrides = (tmp_path / "overrides").read_text().splitlines()
    assert torch in overrides
    assert "torchvision; sys_platform == 'never'" in overrides


def test_what_fits_one_version_only_is_kept_for_that_version(tmp_path: Path) -> None:
    script = f"""
while [ "$1" ]; do
  [ "$1" = --override ] && cat "$2" >> {tmp_path}/overrides
  [ "$1" = --output-file ] && echo torch==2.13.0 > "$2"
  shift
done"""
    resolve("vllm", recipe_of("vllm").version, "cpu", tmp_path / "lock", make_uv(tmp_path, script))
    overrides = (tmp_path / "overrides").read_text().splitlines()
    assert "torchvision==0.28.0" in overrides
    assert "torchvision; sys_platform == 'never'" not in overrides


def test_uv_is_given_the_package_sources_only_where_it_takes_them(tmp_path: Path) -> None:
    uv = make_uv(tmp_path, 'echo "$@"')
    assert uv.run("pip", "sync", "lock", deadline_s=10).split() == ["pip", "sync", "--find-links", "/wheels", "lock"]
    assert uv.run("venv", "folder", deadline_s=10).split() == ["venv", "folder"]


def test_failure_of_uv_tells_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="no route to host"):
        make_uv(tmp_path, "echo no route to host >&2; exit 2").run("pip", "sync", deadline_s=10)


def test_torch_cpu_may_be_a_folder_or_an_address(tmp_path: Path) -> None:
    assert Uv.found(PackageSources(), str(tmp_path)).arguments == ("--find-links", str(tmp_path))
    uv = Uv.found(PackageSources(extra_index_urls=("file:///more",)), "file:///index")
    assert uv.variables["UV_INDEX"].split()[-2:] == ["file:///more", "file:///index"]
    assert uv.arguments == ("--index-strategy", "unsafe-best-match")  # uv takes it once
    with pytest.raises(UserInputError, match="neither a folder nor an address"):
        Uv.found(PackageSources(), str(tmp_path / "nothing"))
