"""The files for ``ray up`` pass Ray's own schema, and start nodes as ``longboat node start`` does."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from longboat import __version__
from longboat.cluster.host.ray_command import RayOptions, ray_env

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "ray"
FILES = sorted(FOLDER.glob("*.yaml"))
LOCKED_UV = re.search(r"^uv==(\S+)", (ROOT / "requirements" / "bootstrap.txt").read_text(), re.MULTILINE)


def schema() -> dict[str, Any]:
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        pytest.skip("Ray is not installed here")
    loaded: dict[str, Any] = json.loads((Path(found.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    return loaded


def test_there_are_three_providers() -> None:
    assert {yaml.safe_load(path.read_text())["provider"]["type"] for path in FILES} == {"aws", "azure", "gcp"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_passes_the_schema_of_ray(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_names_what_exists(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content["head_node_type"] in content["available_node_types"]
    assert (
        sum(kind.get("min_workers", 0) for kind in content["available_node_types"].values()) <= content["max_workers"]
    )
    assert (FOLDER / Path(content["file_mounts"]["~/node.env"])).is_file()
    commands = "\n".join(content["setup_commands"])
    assert f"longboat[cluster]=={__version__}" in commands
    assert LOCKED_UV is not None
    assert f"uv=={LOCKED_UV[1]}" in commands
    assert "token=" not in path.read_text()


def test_variables_are_those_of_node_start() -> None:
    ports = {"metrics": 1, "dashboard_agent": 2}
    options = RayOptions(
        role="head", address="a", gcs_address="a:1", run="r", temp_dir="t", token_file="f", ports=ports
    )
    given = dict(re.findall(r"^export (\w+)=(.+)$", (FOLDER / "node.env").read_text(), re.MULTILINE))
    wanted = ray_env(options)
    assert set(wanted) <= set(given)
    fixed = {name: value for name, value in wanted.items() if name not in ("LONGBOAT_RUN", "LONGBOAT_NODE")}
    own = ("RAY_AUTH_TOKEN_PATH", "RAY_gcs_storage_path")
    assert {name: given[name] for name in fixed if name not in own} == {n: v for n, v in fixed.items() if n not in own}


def test_chart_gives_ray_the_variables_of_node_start() -> None:
    """Without Helm; test_helm.py reads what it renders."""
    ports = {"metrics": 1, "dashboard_agent": 2}
    options = RayOptions(
        role="head", address="a", gcs_address="a:1", run="r", temp_dir="t", token_file="f", ports=ports
    )
    templates = "".join(path.read_text() for path in (ROOT / "deploy/helm/longboat/templates").iterdir())
    given = dict(re.findall(r'name: (\w+), value: "?([^"}]+)"?}', templates))
    of_kuberay = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}
    own = {"LONGBOAT_RUN", "LONGBOAT_NODE", "RAY_gcs_storage_path"}
    wanted = {name: value for name, value in ray_env(options).items() if name not in of_kuberay | own}
    assert {name: given.get(name) for name in wanted} == wanted
    assert own <= set(given)


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "longboat" / "Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "longboat" / "values.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"] == __version__
    assert f"ray[serve]=={values['rayVersion']}" in project["optional-dependencies"]["cluster"]
