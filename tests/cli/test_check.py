"""``longboat check``, and how ``up`` says everything that is wrong at once."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done
from longboat.catalog.library import built_in_library
from longboat.cli.check.described import described_nodes
from longboat.planner.machines.cluster_live import cluster_of_nodes

MISTAKEN = """
models:
  - {source: builtin:tiny, replicas: many}
  - {source: builtin:nope, name: b, engine: {args: [--port, "1"]}}
  - {source: builtin:tiny, name: c, engine: fake, resources: {cpus: 1000}}
gateway:
  aliases: [{name: x, model: gone}]
"""
IN_THE_FILE = ["models[0].replicas", "models[1].source", "models[1].engine.args[0]", "gateway.aliases[0].model"]


def places(done: Done) -> list[str]:
    lines = (line.strip() for line in done.stderr.splitlines()[1:])
    return [line.partition(": ")[0] for line in lines if not line.startswith("→")]


def test_a_file_without_mistakes_is_said_to_have_none(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (path := tmp_path / "fleet.yaml").write_text("models: [builtin:tiny, {source: builtin:tiny, name: b}]")
    done = longboat("check", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "no mistakes" in done.stdout
    assert "tiny, b" in done.stdout


def test_a_folder_is_not_named_as_the_file_that_is_missing(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (folder := tmp_path / "fleet.yaml").mkdir()
    assert "fleet.yaml is a folder, not a fleet file" in " ".join(longboat("check", str(folder)).stderr.split())
    (folder / "mine.yaml").write_text("builtin:tiny")
    assert "mine.yaml" in longboat("check", str(folder)).stderr
    assert "there is" not in longboat("check", str(tmp_path / "flet.yaml")).stderr


def test_everything_that_the_file_shows_is_told(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (path := tmp_path / "fleet.yaml").write_text(MISTAKEN)
    done = longboat("check", str(path))
    assert done.returncode == 2
    assert places(done) == IN_THE_FILE


def test_a_file_that_is_not_there_is_a_mistake(longboat: Callable[..., Done]) -> None:
    assert longboat("check", "no-such-file.yaml").returncode == 2


def test_check_needs_no_ray(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("builtin:tiny")
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "sys.argv = ['longboat', 'check', 'fleet.yaml']\n"
        "from longboat.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_up_tells_what_the_machines_cannot_do_beside_the_mistakes_of_the_file(
    longboat: Callable[..., Done], tmp_path: Path
) -> None:
    (path := tmp_path / "fleet.yaml").write_text(MISTAKEN)
    done = longboat("up", str(path))
    assert done.returncode == 2
    found = places(done)
    assert set(IN_THE_FILE) < set(found)
    assert "models[2].resources.cpus" in found
    assert "no cluster here" not in done.stdout


def test_up_tells_of_secrets_beside_the_mistakes_of_the_file(longboat: Callable[..., Done], tmp_path: Path) -> None:
    admins = "[{name: a, secret_file: /no/such}, {name: b, secret_env: NO_SUCH_VARIABLE}]"
    (path := tmp_path / "fleet.yaml").write_text(f"models: [tiny]\ngateway: {{admin: {admins}}}")
    assert places(longboat("up", str(path))) == ["models[0]", "gateway.admin[a]", "gateway.admin[b]"]


def test_a_mistake_holds_no_other_one_of_its_section_back(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (path := tmp_path / "fleet.yaml").write_text("""
models:
  - {source: builtin:nope, replicas: many, engine: {args: [--port, "1"]}}
  - {source: builtin:nope, name: b, engine: vlm, split: {tensor: 2}}
gateway: {prot: 1, admin: [{name: a, secret_file: /no/such}]}
""")
    expected = {
        "models[0].replicas", "models[0].source", "models[0].engine.args[0]", "models[1].engine", "models[1].source",
        "gateway.prot", "gateway.admin[a]",
    }  # fmt: skip
    for command in (("check", "--on", "none"), ("check", "--on", "here"), ("up",)):
        assert set(places(longboat(*command, str(path)))) == expected


def test_several_files_are_checked_each_by_itself(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (good := tmp_path / "good.yaml").write_text("builtin:tiny")
    (bad := tmp_path / "bad.yaml").write_text("models: [builtin:nope]")
    done = longboat("check", str(good), str(bad))
    assert done.returncode == 2
    assert "good.yaml: no mistakes" in done.stdout
    assert "bad.yaml, line 1" in done.stderr


def test_check_places_a_fleet_on_described_machines(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (path := tmp_path / "fleet.yaml").write_text(
        "models: [{source: 'hf:Qwen/Qwen3-8B', replicas: 3, placement: {labels: {gpu: small}}}]"
    )
    (cluster := tmp_path / "cluster.yaml").write_text(
        "nodes: [{cards: RTX 4090, count: 3, labels: {gpu: small}}, {cards: H100}]"
    )
    assert longboat("check", str(path), "--on", str(cluster)).returncode == 0
    done = longboat("check", str(path), "--on", "2x(RTX 4090)", "--json")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    places = [problem["where"] for problem in document["targets"][0]["problems"]]
    assert places == ["models[0].placement.labels.gpu"]


@pytest.mark.parametrize(("engine", "gpus"), [("llama.cpp", 0), ("vllm", 1)])
def test_an_engine_for_processors_takes_no_described_card(
    longboat: Callable[..., Done], tmp_path: Path, engine: str, gpus: int
) -> None:
    (path := tmp_path / "fleet.yaml").write_text(f"models: [{{source: 'builtin:tiny', engine: {engine}}}]")
    document = json.loads(longboat("check", str(path), "--on", "1xH100", "--json").stdout)
    (model,) = document["targets"][0]["plan"]["models"].values()
    assert model["per_rank"]["num_gpus"] == gpus


def test_a_file_from_stdin_is_merged_and_planned(
    longboat: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "fleet.yaml").write_text("models: [{source: 'hf:Qwen/Qwen3-8B', name: chat}]")
    monkeypatch.setenv("COPIES", "2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("models:\n  - name: chat\n    replicas: ${COPIES}\n"))
    done = longboat("check", "-f", str(path), "-f", "-", "--on", "2x(4xH100)", "--json")
    assert done.returncode == 0
    plan = json.loads(done.stdout)["targets"][0]["plan"]
    assert plan["models"]["chat"]["replicas"] == 2
    monkeypatch.delenv("COPIES")
    monkeypatch.setattr(sys, "stdin", io.StringIO("models:\n  - name: chat\n    replicas: ${COPIES}\n"))
    assert "COPIES is not set" in longboat("check", str(path), "-f", "-").stderr


@pytest.mark.parametrize(
    "words", [("-", "-"), ("builtin:tiny", "-f", "-", "-"), ("examples/fake.yaml", "-f", "-", "-f", "-")]
)
def test_stdin_that_is_named_twice_is_refused_once_and_not_read(
    words: tuple[str, ...], longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", text := io.StringIO("builtin:tiny"))
    done = longboat("check", *words)
    assert done.returncode == 2
    assert "stdin is named" in done.stderr and "can be read once" in done.stderr
    assert done.stderr.count("error:") == 1
    assert text.read() == "builtin:tiny"


def test_a_dry_run_starts_nothing(longboat: Callable[..., Done], tmp_path: Path) -> None:
    (path := tmp_path / "fleet.yaml").write_text(MISTAKEN)
    done = longboat("up", "--dry-run", str(path))
    assert done.returncode == 2
    assert set(IN_THE_FILE) < set(places(done))
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("**/node.json"))


def test_a_variable_that_is_missing_is_told_with_its_place_once(longboat: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("models:\n  - source: ${LONGBOAT_NO_SUCH}\n")
    told = longboat("check", str(path), "--on", "none").stderr
    assert f"models[0].source: the environment variable LONGBOAT_NO_SUCH is not set  ({path}, line 2)" in told


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("4xL40S", "L40S"),
        ("4x(RTX 4090 48GB)", "RTX-4090-48-GiB"),
        ("2x(L40S + T4)", "T4"),
        ("EPYC9004", ""),
        ("Ryzen AI Max 395", "Ryzen-AI-Max+-395"),
    ],
)
def test_described_nodes_name_their_cards_as_running_ones_do(text: str, cards: str) -> None:
    library = built_in_library()
    (node, *_) = described_nodes(text, library).nodes
    assert node.labels.get("longboat.accelerator", "") == cards
    if cards:
        assert cluster_of_nodes([node], library).kinds[0].cards[0].count == node.num_gpus


def test_a_described_fleet_is_planned_like_the_running_one(longboat: Callable[..., Done], tmp_path: Path) -> None:
    """On one pool of unlike nodes each card would count as the weakest: six stages on T4."""
    (path := tmp_path / "fleet.yaml").write_text(
        "models: [{source: 'hf:Qwen/Qwen3-32B', split: auto, replicas: auto, load: {users: 64}}]"
    )
    cards = [("4xL40S", 1, "L40S"), ("1xT4", 2, "T4")]
    (cluster := tmp_path / "cluster.yaml").write_text(
        json.dumps(
            {"nodes": [{"cards": text, "count": n, "labels": {"ray.io/accelerator-type": x}} for text, n, x in cards]}
        )
    )
    told = []
    for on in ("1x(4xL40S) + 2x(1xT4)", str(cluster)):
        document = json.loads(longboat("check", str(path), "--on", on, "--json").stdout)
        model = document["targets"][0]["plan"]["models"]["Qwen3-32B"]
        told.append((model["split"]["tensor"], model["split"]["pipeline"], model["replicas"]))
    assert told == [(2, 1, 2)] * 2
