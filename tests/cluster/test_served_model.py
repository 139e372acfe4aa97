"""A model's way from the fleet file to its supervisor: through Serve's JSON arguments, and through Ray as an object."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from longboat.cluster.fleet.serve_config import ShapedModel, serve_document
from longboat.cluster.protocol.model import EngineSettings, ServedModel, read_model
from longboat.core.plan import GangShape, RankResources
from longboat.spec.files.load import load_fleet

SHAPE = GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources())
VLLM = "name: m, source: 'hf:o/n', context: 512, engine: {kind: vllm, version: 0.32.0, startup: plain, args: [--a, b]}"
FAKE = "name: m, source: 'builtin:tiny', engine: {kind: fake, options: {ttft_ms: 5}}"


def arguments(model: str) -> dict[str, Any]:
    """Return the arguments of the model's application as they come back from Serve."""
    text = f"models: [{{{model}}}]"
    fleet = load_fleet(text, "x")
    document = serve_document(fleet, [ShapedModel(spec=fleet.models[0], shape=SHAPE)], text)
    values: dict[str, Any] = json.loads(json.dumps(document["applications"][-1]["args"]))
    return values


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            VLLM,
            ServedModel(
                name="m",
                source="hf:o/n",
                engine=EngineSettings(kind="vllm", version="0.32.0", startup="plain", args=("--a", "b")),
                context=512,
            ),
        ),
        (
            FAKE,
            ServedModel(name="m", source="builtin:tiny", engine=EngineSettings(kind="fake", options={"ttft_ms": 5})),
        ),
    ],
)
def test_a_supervisor_reads_the_model_of_the_fleet_file(text: str, wanted: ServedModel) -> None:
    found = read_model(arguments(text)["model"])
    assert found == wanted
    assert pickle.loads(pickle.dumps(found)) == wanted  # noqa: S301
