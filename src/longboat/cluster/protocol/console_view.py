"""The fleet as consoles show it: one JSON document for all gateways whose console shows the fleet."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from longboat.cluster.protocol.messages import FleetReport, GatewayReport
from longboat.cluster.protocol.planner_figures import pairs_of
from longboat.core.states import ReplicaState
from longboat.telemetry import logger

__all__ = ("ConsoleViews", "view_document")

log = logger("controller")

Resources = Mapping[str, Mapping[str, float]]
"""Node → its resources by Ray's names."""

_AGE_S = 0.5
_MAX_TEXT = 2000
_LAST_LINES = 12
_DECISIONS = 20
_ACCELERATOR = "accelerator_type:"


class ConsoleViews:
    """The newest view, made again after half a second: all nodes get the same one."""

    def __init__(self) -> None:
        self._made_s = -math.inf
        self._view = b""

    def view(self, report: Callable[[], FleetReport], resources: Resources) -> bytes:
        """Return the view as JSON. It holds no secrets: no key, no command and no environment."""
        now_s = time.monotonic()
        if now_s - self._made_s >= _AGE_S:
            self._made_s = now_s
            try:
                self._view = _encoded(view_document(report(), resources))
            except Exception as error:  # a defect here must not keep nodes from their orders
                log.warning("the fleet cannot be shown in the console: %r", error)
                self._view = b""
        return self._view


def _encoded(document: dict[str, Any]) -> bytes:
    """Encode the view. JSON has no infinite numbers: each becomes null."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(document), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def view_document(report: FleetReport, resources: Resources) -> dict[str, Any]:
    """Return what the console's page of the fleet shows."""
    gateways = {gateway.node_id: gateway for gateway in report.gateways}
    return {
        "fleet": report.fleet,
        "at_s": report.at_s,
        "nodes": [_node(node, resources.get(node, {}), gateways.get(node)) for node in sorted({*resources, *gateways})],
        "replicas": [_replica(state) for state in report.replicas],
        "counts": {
            model: {
                "wanted": count.wanted,
                "minimum": count.minimum,
                "maximum": count.maximum,
                "by": count.by,
                "why": count.why[:_MAX_TEXT],
                "paused": count.paused,
                "unplaced": count.unplaced,
                "problem": count.problem[:_MAX_TEXT],
            }
            for model, count in report.counts.items()
        },
        "decisions": [dict(decision) for decision in report.decisions[-_DECISIONS:]],
        "failures": {
            model: [line[:_MAX_TEXT] for line in (*failed.log_tail[-_LAST_LINES:], failed.state.detail) if line]
            for model, failed in report.failures.items()
        },
        "problems": [problem[:_MAX_TEXT] for problem in report.problems],
        "updating": sorted(report.updating),
        "taken_back": {model: why[:_MAX_TEXT] for model, (_, why) in report.taken_back.items()},
        "started": {model: dict(mark) for model, mark in report.started.items()},
        "pairs": _pairs(report),
        "partial": report.partial,
    }


def _node(node_id: str, resources: Mapping[str, float], gateway: GatewayReport | None) -> dict[str, Any]:
    accelerator = next((name for name in resources if name.startswith(_ACCELERATOR)), "")
    return {
        "id": node_id,
        "hostname": gateway.hostname if gateway else "",
        "address": gateway.address if gateway else "",
        "alive": bool(resources),
        "cpus": resources.get("CPU", 0),
        "gpus": resources.get("GPU", 0),
        "accelerator": accelerator.removeprefix(_ACCELERATOR),
        "memory_bytes": int(resources.get("memory", 0)),
        "gateway": {
            "url": gateway.url if gateway else "",
            "problem": gateway.problem[:_MAX_TEXT] if gateway else "no report yet",
            "in_flight": gateway.in_flight if gateway else 0,
            "requests": gateway.requests_total if gateway else 0,
            "draining": bool(gateway and gateway.draining),
        },
    }


def _replica(state: ReplicaState) -> dict[str, Any]:
    return {
        "model": state.model,
        "replica": state.replica,
        "generation": state.generation,
        "phase": state.phase.value,
        "phase_s": {str(phase): round(seconds, 1) for phase, seconds in state.phase_s.items()},
        "detail": state.detail[:_MAX_TEXT],
        "shape": state.shape,
        "resume": state.resume.value,
        "resume_detail": state.resume_detail[:_MAX_TEXT],
        "ranks": [
            {
                "rank": rank.node_rank,
                "node": rank.node_id,
                "hostname": rank.hostname,
                "address": rank.address,
                "alive": rank.pid is not None,
                "memory_bytes": rank.memory_bytes or rank.rss_bytes,
                "gpus": rank.gpu_ids,
            }
            for rank in state.ranks
        ],
        "adapters": sorted(state.adapters),
        "adapter_problems": dict(state.adapter_problems),
    }


def _pairs(report: FleetReport) -> dict[str, Any]:
    """Return predicted beside measured figures of each model with a ready replica."""
    pairs = pairs_of(report.planned.get("models", {}), report.replicas)
    return {model: pair.values() for model, pair in pairs.items()}
