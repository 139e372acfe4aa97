"""Each fleet file of the page for those that come from another project passes ``longboat check``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "coming-from.md"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
FILE = re.compile(r"^```yaml\n(# check: ([^\n]+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
PARTS = SECTION.split(PAGE.read_text())[1:]
SECTIONS = dict(zip(PARTS[::2], PARTS[1::2], strict=True))


def test_each_of_the_compared_projects_has_a_section() -> None:
    projects = ("vllm serve", "Ray Serve LLM", "Dynamo", "llm-d", "LiteLLM", "GPUStack", "exo")
    assert all(any(section.startswith(project) for section in SECTIONS) for project in projects)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_file_of_each_section_passes_check(section: str, longboat: Callable[..., Done], tmp_path: Path) -> None:
    (found,) = FILE.finditer(SECTIONS[section])
    file = tmp_path / "fleet.yaml"
    file.write_text(found[1])
    done = longboat("check", str(file), *shlex.split(found[2]))
    assert done.returncode == 0, done.stderr
    assert "placed on" in done.stdout
