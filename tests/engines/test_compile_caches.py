"""What engines compile is shared by the replicas of a node, and removed by a budget while no replica uses it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engines.test_vllm import gang
from longboat.cluster.host.hardware import processor_name
from longboat.engines.contract import EngineEnvironment
from longboat.engines.launch.compiled import CompiledFolder, compiled_key
from longboat.engines.registry import adapter_for
from longboat.file_lock import FileLock

ENVIRONMENT = EngineEnvironment(
    kind="vllm", python="/e/bin/python", distribution="vllm", version="0.32.0", platform="cuda", fingerprint="f"
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 64}')
    return str(tmp_path / "model")


def test_a_folder_that_cannot_be_made_stays_locked_by_no_process(tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "vllm-a").write_text("a file")
    with pytest.raises(FileExistsError):
        CompiledFolder(tmp_path, "vllm-a")
    lock = FileLock.taken(tmp_path / "compiled" / "locks" / "vllm-a")
    assert lock is not None
    lock.release()


def test_the_key_covers_engine_model_split_and_hardware(model: str) -> None:
    plan = replace(gang(), model_path=model)
    key = compiled_key(ENVIRONMENT, plan, "H100")
    assert key == compiled_key(ENVIRONMENT, replace(plan, replica="other", generation=9), "H100")
    assert key.startswith("vllm-")
    others = {
        compiled_key(replace(ENVIRONMENT, version="0.33.0"), plan, "H100"),
        compiled_key(replace(ENVIRONMENT, fingerprint="g"), plan, "H100"),
        compiled_key(ENVIRONMENT, plan, "A100"),
        compiled_key(ENVIRONMENT, replace(gang(tensor=2), model_path=model), "H100"),
    }
    (Path(model) / "config.json").write_text('{"hidden_size": 128}')
    others.add(compiled_key(ENVIRONMENT, plan, "H100"))
    assert key not in others
    assert len(others) == 5


def test_the_least_recently_used_folder_leaves_and_one_in_use_stays(tmp_path: Path) -> None:
    folders = [CompiledFolder(tmp_path, f"vllm-{name}") for name in "abc"]
    for age_s, folder in zip((300, 200, 100), folders, strict=True):
        (folder.path / "code").write_bytes(bytes(1000))
        os.utime(folder.path, (1e9 - age_s, 1e9 - age_s))
    for folder in folders[1:]:
        folder.release()
    CompiledFolder(tmp_path, "vllm-d", budget_bytes=2500).release()
    assert sorted(path.name for path in (tmp_path / "compiled").glob("vllm-*")) == ["vllm-a", "vllm-c", "vllm-d"]
    folders[0].release()
    CompiledFolder(tmp_path, "vllm-d", budget_bytes=0).release()
    assert sorted(path.name for path in (tmp_path / "compiled").glob("vllm-*")) == ["vllm-d"]


def test_a_folder_that_another_rank_removes_meanwhile_costs_no_other_its_own(tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "vllm-gone").symlink_to("nowhere")
    assert CompiledFolder(tmp_path, "vllm-a").path.is_dir()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_engines_compile_into_the_folder(kind: str) -> None:
    places = adapter_for(kind).compiled_env(gang(), "cuda", "/c/k")
    assert {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} <= places.keys()
    assert all(place.startswith("/c/k/") for place in places.values())
    assert not adapter_for("llama.cpp").compiled_env(gang(), "cuda", "/c/k")


@pytest.mark.parametrize(
    ("kind", "args", "compiles"),
    [
        ("vllm", (), False),
        ("vllm", ("--enforce-eager",), False),
        ("vllm", ("--no-enforce-eager",), True),
        ("vllm", ("--no_enforce_eager",), True),
        ("vllm", ("--no-enforce-eager", "--enforce-eager"), False),
        ("sglang", (), False),
        ("sglang", ("--enable-torch-compile",), True),
    ],
)
def test_nothing_is_kept_on_processors_where_engines_compile_nothing(
    kind: str, args: tuple[str, ...], compiles: bool
) -> None:
    plan = replace(gang(), extra_args=args)
    assert bool(adapter_for(kind).compiled_env(plan, "cpu", "/c/k")) is compiles


def test_only_its_user_reads_it(tmp_path: Path) -> None:
    folder = CompiledFolder(tmp_path, "vllm-a")
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_processor_is_known_by_its_name_and_abilities(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    one = "processor : {}\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2\n\n"
    file.write_text(one.format(0) + one.format(1))
    assert processor_name(file) == "AMD EPYC\nfpu avx2"
    assert processor_name(tmp_path / "none") == ""
