"""Every metric that a gateway returns: the gateway writes them, dashboards, alerts and checks read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ("GATEWAY", "METRICS", "NODE", "PLANNER", "SCALING", "Metric")

Kind = Literal["counter", "gauge", "histogram"]

GATEWAY: Final = "longboat_gateway_"
SCALING: Final = "longboat_scaling_"
PLANNER: Final = "longboat_planner_"
NODE: Final = "longboat_node_"
"""What the names of metrics begin with."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a gateway's ``GET /metrics``."""

    name: str  # whole, as Prometheus stores it
    kind: Kind
    labels: tuple[str, ...]
    text: str  # the line of help

    @property
    def series(self) -> tuple[str, ...]:
        """Names under which Prometheus stores its samples."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


def _family(prefix: str, labels: tuple[str, ...], *rows: tuple[Kind, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(prefix + name, kind, labels, text) for kind, name, text in rows)


METRICS: Final = (
    *_family(
        GATEWAY, ("model", "tenant", "outcome"),
        ("counter", "requests_total", "Requests that ended, by how they ended."),
    ),
    *_family(
        GATEWAY, ("model", "tenant"),
        (
            "histogram", "time_to_first_token_seconds",
            "From the request's first byte to the first byte of generated tokens.",
        ),
        (
            "histogram", "inter_token_latency_seconds",
            "Between two blocks of one stream, as they came from the engine.",
        ),
        ("histogram", "e2e_request_latency_seconds", "From the request's first byte to the answer's last byte."),
        ("histogram", "queue_time_seconds", "How long a request waited in the gateway for room on a replica."),
        ("counter", "prompt_tokens_total", "Prompt tokens, as engines reported them."),
        ("counter", "generation_tokens_total", "Generated tokens, as engines reported them."),
        ("counter", "prompt_tokens_cached_total", "Prompt tokens that engines took from their prefix caches."),
        ("counter", "prefix_expected_tokens_total", "Cached tokens that choices of replicas expected."),
        ("counter", "prefix_held_tokens_total", "Cached tokens that engines found for these requests."),
        ("counter", "prefix_found_tokens_total", "Cached tokens that were expected and found."),
        ("counter", "retries_total", "Attempts after the first one of a request."),
        ("counter", "preemptions_total", "Pauses of streams for requests of better classes."),
        (
            "counter", "preemptions_denied_total",
            "Requests for which no stream of a worse class could be paused.",
        ),
        ("gauge", "requests_in_flight", "Requests that were begun and are not answered in full."),
        ("gauge", "requests_waiting", "Those of them that wait for room."),
        ("gauge", "preempted_streams", "Those of them that were paused for a better class."),
    ),
    *_family(
        GATEWAY, ("code", "tenant"),
        ("counter", "refusals_total", "Error responses of the gateway itself."),
    ),
    *_family(
        GATEWAY, ("requested", "served"),
        ("counter", "fallbacks_total", "Requests that another model served."),
    ),
    *_family(
        GATEWAY, ("endpoint", "outcome"),
        ("counter", "external_requests_total", "Requests that external addresses ended."),
    ),
    *_family(
        GATEWAY, ("model", "currency"),
        ("counter", "external_cost_total", "Money that external models cost."),
    ),
    *_family(
        GATEWAY, ("tenant", "currency"),
        ("counter", "tenant_cost_total", "Money that tenants' requests cost, by the prices of the fleet file."),
    ),
    *_family(
        GATEWAY, ("reason", "result"),
        ("counter", "resumes_total", "Responses that lost their engine, by result."),
    ),
    *_family(
        GATEWAY, (),
        ("histogram", "resume_gap_seconds", "How long a client got nothing of an answer that its engine had left."),
        ("histogram", "resume_detection_seconds", "How long an engine was silent before it was left."),
        (
            "histogram", "preempted_seconds",
            "How long a client got nothing of a stream that was paused for a better class.",
        ),
        ("gauge", "processes_missing", "Processes of this node that did not reply in time."),
    ),
    *_family(
        GATEWAY, ("event",),
        ("counter", "events_total", "Rare events that matter to an operator."),
    ),
    *_family(
        GATEWAY, ("model", "replica"),
        ("gauge", "upstream_ready", "1 while a replica takes requests."),
        ("gauge", "upstream_suspect", "Gateway processes that could not connect to it lately."),
        ("gauge", "upstream_requests_in_flight", "Requests of this node at a replica."),
    ),
    *_family(
        SCALING, ("model",),
        ("gauge", "replicas_wanted", "Replicas that the model is to have."),
        ("gauge", "replicas_min", "The least number of replicas, by the fleet file."),
        ("gauge", "replicas_max", "The largest number of replicas, by the fleet file."),
        ("gauge", "by_hand", "1 while an operator asked for the number."),
        ("gauge", "paused", "1 while an operator paused the model."),
        ("gauge", "replicas_unplaced", "Wanted replicas that no node has room for."),
        ("gauge", "cold_start_seconds", "The newest start, from the order to the first token."),
        ("counter", "raised_total", "Decisions for more replicas, since the controller started."),
        ("counter", "lowered_total", "Decisions for fewer replicas, since the controller started."),
    ),
    *_family(
        PLANNER, ("model",),
        ("gauge", "predicted_inter_token_latency_seconds", "Mean time between tokens, as predicted for this load."),
        ("gauge", "measured_inter_token_latency_seconds", "Mean time between tokens, as engines measured it."),
        ("gauge", "predicted_time_to_first_token_seconds", "Mean time to the first token, as predicted."),
        ("gauge", "measured_time_to_first_token_seconds", "Mean time to the first token, as engines measured it."),
        ("gauge", "predicted_rank_bytes", "Memory of the fullest rank, as predicted."),
        ("gauge", "measured_rank_bytes", "Memory of the fullest rank."),
        ("gauge", "predicted_kv_blocks", "Blocks of the KV cache, as predicted."),
        ("gauge", "measured_kv_blocks", "Blocks of the KV cache of the replica with the fewest."),
    ),
    *_family(
        NODE, (),
        ("gauge", "load1", "Processes that ran or waited for a CPU, mean of a minute."),
        ("gauge", "cpus", "CPUs of the node."),
        ("gauge", "memory_bytes", "Memory of the node."),
        ("gauge", "memory_available_bytes", "Memory that programs may still take."),
        ("gauge", "disk_bytes", "Size of the disk that holds the gateway's state."),
        ("gauge", "disk_available_bytes", "Free bytes of that disk."),
    ),
    *_family(
        GATEWAY, ("process",),
        ("counter", "cpu_seconds_total", "CPU time, user and system, of a gateway process."),
        ("gauge", "resident_memory_bytes", "Resident memory of a gateway process."),
        ("gauge", "client_connections", "Open connections of clients."),
        ("gauge", "held_body_bytes", "Request bodies in memory."),
        ("gauge", "event_loop_lag_max_seconds", "The longest lag of the last 30 to 60 seconds."),
        ("histogram", "event_loop_lag_seconds", "Delay of the event loop."),
    ),
)  # fmt: skip
