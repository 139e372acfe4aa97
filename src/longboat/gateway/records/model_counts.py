"""What a gateway counted for each model: the controller decides from it how many replicas the model has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from longboat.gateway.records.metrics import add_counts

__all__ = ("counts_by_model",)

_ADDED: Final = ("in_flight", "waiting", "prompt_tokens", "completion_tokens", "cached_tokens")
_UNANSWERED: Final = "refused"


def counts_by_model(
    series: Iterable[Mapping[str, Any]],
    parked: Mapping[str, int],
    priorities: Mapping[str, int],
    model_of: Callable[[str], str] = str,
    answers: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Add up the counters of all tenants.

    series: as in the snapshot of the metrics; parked: model → its requests that wait for an engine
    priorities: tenant → its class, where that is not 1
    model_of: returns the model whose replicas serve a requested name: an adapter's base model, else the name itself
    answers: requested name → its newest responses by class
    """
    found: dict[str, dict[str, Any]] = {}
    for item in series:
        add_counts(
            found.setdefault(model_of(str(item["model"])), {}), _counts_of(item, priorities.get(item["tenant"], 1))
        )
    for model, number in parked.items():
        add_counts(found.setdefault(model, {}), {"parked": number})
    # Not among the classes: older controllers know all that is there.
    for counts in found.values():
        counts["answers"] = {}
    for name, classes in (answers or {}).items():
        found.setdefault(model_of(name), {"answers": {}})["answers"][name] = classes
    return found


def _counts_of(item: Mapping[str, Any], priority: int) -> dict[str, Any]:
    all_ended = sum(item["outcomes"].values())  # more replicas might have served those that the gateway refused
    answered = all_ended - item["outcomes"].get(_UNANSWERED, 0)
    counts: dict[str, Any] = {name: item[name] for name in _ADDED}
    classes = {str(priority): {"ttft": item["ttft"], "itl": item["itl"]}}
    return {**counts, "arrived": item["in_flight"] + all_ended, "ended": answered, "classes": classes}
