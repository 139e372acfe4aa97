"""Stages that are bound by labels, on their way through Serve's document: bundles, labels, and the shape again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from longboat.cluster.fleet.deployed import bundle_labels
from longboat.cluster.fleet.serve_config import ShapedModel, serve_document
from longboat.cluster.protocol.model import read_shape
from longboat.core.topology import Node
from longboat.engines.registry import splits_of
from longboat.planner.fleet.place import NoShape, shape_gang
from longboat.spec.files.load import load_fleet
from longboat.spec.wanted import wanted_model

NODES = tuple(Node(node_id=name, address=name, num_cpus=4, labels={"host": name, "zone": "z"}) for name in "ab")
MODEL = "models: [{source: 'builtin:tiny', engine: fake, resources: {cpus: 2}, %s}]"


def arguments(rest: str) -> dict[str, Any]:
    """Of the model's application, as they come back from Serve; the shape that travels in them is the planned one."""
    text = MODEL % rest
    fleet = load_fleet(text, "x")
    (spec,) = fleet.models
    shape = shape_gang(wanted_model(spec, splits_of), None, NODES, "cpu")
    assert not isinstance(shape, NoShape)
    document = serve_document(fleet, [ShapedModel(spec=spec, shape=shape)], text)
    args: dict[str, Any] = json.loads(json.dumps(document["applications"][-1]["args"]))
    assert read_shape(args["shape"]) == replace(shape, reason="")
    return args


def test_each_stage_has_a_bundle_with_its_labels() -> None:
    args = arguments(
        "split: {pipeline: 3, layers: [1, 2, 1]}, placement: {labels: {zone: z}, stages: [{host: b}, {}, {host: b}]}"
    )
    assert args["bundles"] == [{"CPU": 2.0}] * 3
    assert args["strategy"] == "PACK"
    assert bundle_labels(args) == [{"zone": "z", "host": "b"}, {"zone": "z"}, {"zone": "z", "host": "b"}]


def test_stages_on_nodes_of_their_own_are_spread() -> None:
    args = arguments("split: {pipeline: 2}, placement: {stages: [{host: b}, {}], nodes: 2}")
    assert args["strategy"] == "STRICT_SPREAD"
    assert bundle_labels(args) == [{"host": "b"}, {}]


def test_models_without_bound_stages_ask_for_what_they_did() -> None:
    assert bundle_labels(arguments("split: {pipeline: 2}")) == []
    assert bundle_labels(arguments("split: {pipeline: 2}, placement: {labels: {zone: z}}")) == [{"zone": "z"}] * 2
