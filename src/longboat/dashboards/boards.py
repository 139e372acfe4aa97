"""What stands on each dashboard: panels with their queries, before they are written for Grafana."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ("BOARDS", "Board", "Panel")

_G: Final = "longboat_gateway_"
_S: Final = "longboat_scaling_"
_P: Final = "longboat_planner_"
_N: Final = "longboat_node_"
_ONE_MODEL: Final = 'model=~"$model"'
_ONE_TENANT: Final = 'tenant=~"$tenant"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart."""

    title: str
    queries: tuple[tuple[str, str], ...]  # PromQL, and the legend of its lines
    unit: str = "short"  # as Grafana names it
    about: str = ""  # a sentence for the reader
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    name: str  # of its file and its address
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()  # name of a choice at the top, and the metric whose label it lists


def _rate(name: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({_G}{name}{{{where}}}[$__rate_interval]))"


def _quantile(part: float, name: str, by: str, where: str = "") -> str:
    return f"histogram_quantile({part}, {_rate(f'{name}_bucket', f'{by}, le' if by else 'le', where)})"


def _quantiles(name: str, where: str = "") -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(part, name, "", where), f"p{part * 100:g}") for part in (0.5, 0.95, 0.99))


def _share(part: str, whole: str, by: str, where: str = "") -> str:
    return f"{_rate(part, by, where)} / {_rate(whole, by, where)}"


def _failed(by: str) -> str:
    bad = f'sum by ({by}) (rate({_G}requests_total{{outcome=~"engine_error|broken"}}[$__rate_interval]))'
    return f"({bad} or 0 * {_rate('requests_total', by)}) / {_rate('requests_total', by)}"


def _requests(by: str, where: str = "") -> Panel:
    return Panel(
        title=f"Requests by {by}", queries=((_rate("requests_total", by, where), f"{{{{{by}}}}}"),), unit="reqps",
        stacked=True,
    )  # fmt: skip


def _latencies(where: str) -> tuple[Panel, ...]:
    return (
        Panel(title="Time to first token", queries=_quantiles("time_to_first_token_seconds", where), unit="s"),
        Panel(title="Inter-token latency", queries=_quantiles("inter_token_latency_seconds", where), unit="s"),
        Panel(title="Whole response", queries=_quantiles("e2e_request_latency_seconds", where), unit="s"),
        Panel(
            title="Wait in the gateway", queries=_quantiles("queue_time_seconds", where), unit="s",
            about="How long requests waited for room on a replica.",
        ),
    )  # fmt: skip


def _tokens(by: str, where: str = "") -> Panel:
    return Panel(
        title="Tokens a second",
        queries=(
            (_rate("prompt_tokens_total", by, where), f"prompt {{{{{by}}}}}"),
            (_rate("generation_tokens_total", by, where), f"generated {{{{{by}}}}}"),
        ),
    )


FLEET: Final = Board(
    name="longboat-fleet",
    title="Longboat: fleet",
    panels=(
        _requests("model"),
        Panel(
            title="Failed share", queries=((_failed("model"), "{{model}}"),), unit="percentunit",
            about="Requests that an engine failed or that broke off.",
        ),
        Panel(
            title="Time to first token, p95",
            queries=((_quantile(0.95, "time_to_first_token_seconds", "model"), "{{model}}"),),
            unit="s",
        ),
        _tokens("model"),
        Panel(
            title="Replicas ready and wanted",
            queries=(
                (f"count by (model) (max by (model, replica) ({_G}upstream_ready) > 0)", "{{model}} ready"),
                (f"max by (model) ({_S}replicas_wanted)", "{{model}} wanted"),
            ),
        ),
        Panel(
            title="Requests in flight and waiting",
            queries=(
                (f"sum by (model) ({_G}requests_in_flight)", "{{model}} in flight"),
                (f"sum by (model) ({_G}requests_waiting)", "{{model}} waiting"),
            ),
        ),
        Panel(
            title="Streams that another replica continued",
            queries=((_rate("resumes_total", "reason, result"), "{{reason}} {{result}}"),),
            about="Responses that lost their engine. `failed` ones broke off.",
        ),
        Panel(title="Refusals", queries=((_rate("refusals_total", "code"), "{{code}}"),), unit="reqps", stacked=True),
    ),
)  # fmt: skip

MODEL: Final = Board(
    name="longboat-model",
    title="Longboat: model",
    variables=(("model", f"{_G}requests_total"),),
    panels=(
        _requests("outcome", _ONE_MODEL),
        *_latencies(_ONE_MODEL),
        _tokens("model", _ONE_MODEL),
        Panel(
            title="Prompt tokens from prefix caches",
            queries=(
                (_share("prompt_tokens_cached_total", "prompt_tokens_total", "model", _ONE_MODEL), "{{model}} cached"),
                (
                    _share("prefix_found_tokens_total", "prefix_expected_tokens_total", "model", _ONE_MODEL),
                    "{{model}} precision",
                ),
                (
                    _share("prefix_found_tokens_total", "prefix_held_tokens_total", "model", _ONE_MODEL),
                    "{{model}} recall",
                ),
            ),
            unit="percentunit",
            about="Cached share, and how well the gateways predict what engines hold.",
        ),
        Panel(
            title="Requests at each replica",
            queries=(
                (f"sum by (model, replica) ({_G}upstream_requests_in_flight{{{_ONE_MODEL}}})", "{{model}} {{replica}}"),
            ),
        ),
        Panel(
            title="Replicas",
            queries=tuple(
                (f"max by (model) ({_S}replicas_{name}{{{_ONE_MODEL}}})", f"{{{{model}}}} {name}")
                for name in ("wanted", "min", "max", "unplaced")
            ),
        ),
        Panel(
            title="Decisions about the number of replicas",
            queries=(
                (f"max by (model) (increase({_S}raised_total{{{_ONE_MODEL}}}[1h]))", "{{model}} more, last hour"),
                (f"max by (model) (increase({_S}lowered_total{{{_ONE_MODEL}}}[1h]))", "{{model}} fewer, last hour"),
            ),
        ),
        Panel(
            title="Newest cold start", unit="s",
            queries=((f"max by (model) ({_S}cold_start_seconds{{{_ONE_MODEL}}})", "{{model}}"),),
        ),
    ),
)  # fmt: skip

TENANT: Final = Board(
    name="longboat-tenant",
    title="Longboat: tenants",
    variables=(("tenant", f"{_G}requests_total"),),
    panels=(
        _requests("tenant", _ONE_TENANT),
        _tokens("tenant", _ONE_TENANT),
        *_latencies(_ONE_TENANT),
        Panel(
            title="Requests in flight and waiting",
            queries=(
                (f"sum by (tenant) ({_G}requests_in_flight{{{_ONE_TENANT}}})", "{{tenant}} in flight"),
                (f"sum by (tenant) ({_G}requests_waiting{{{_ONE_TENANT}}})", "{{tenant}} waiting"),
            ),
        ),
        Panel(
            title="Streams that made room for better classes",
            queries=(
                (_rate("preemptions_total", "tenant", _ONE_TENANT), "{{tenant}} pauses a second"),
                (f"sum by (tenant) ({_G}preempted_streams{{{_ONE_TENANT}}})", "{{tenant}} paused now"),
                (_rate("preemptions_denied_total", "tenant", _ONE_TENANT), "{{tenant}} found no stream to pause"),
            ),
        ),
        Panel(
            title="Refusals", unit="reqps", stacked=True,
            queries=((_rate("refusals_total", "tenant, code", _ONE_TENANT), "{{tenant}} {{code}}"),),
        ),
        Panel(
            title="Money, by hour",
            queries=((
                f"sum by (tenant, currency) (increase({_G}tenant_cost_total{{{_ONE_TENANT}}}[1h]))",
                "{{tenant}} {{currency}}",
            ),),
            about="What requests cost by the prices of the fleet file. `tenants[].money_per_day` limits it.",
        ),
    ),
)  # fmt: skip

GATEWAY: Final = Board(
    name="longboat-gateway",
    title="Longboat: gateways",
    panels=(
        Panel(
            title="CPU of a process", unit="percentunit", about="1 is a whole core.",
            queries=((_rate("cpu_seconds_total", "instance, process"), "{{instance}} {{process}}"),),
        ),
        Panel(
            title="Event loop lag, longest", unit="s",
            queries=((f"max by (instance, process) ({_G}event_loop_lag_max_seconds)", "{{instance}} {{process}}"),),
        ),
        Panel(
            title="Event loop lag, p99", unit="s",
            queries=((_quantile(0.99, "event_loop_lag_seconds", "instance, process"), "{{instance}} {{process}}"),),
        ),
        Panel(
            title="Memory", unit="bytes",
            queries=(
                (f"sum by (instance, process) ({_G}resident_memory_bytes)", "{{instance}} {{process}}"),
                (f"sum by (instance) ({_G}held_body_bytes)", "{{instance}} request bodies"),
            ),
        ),
        Panel(
            title="Connections of clients",
            queries=((f"sum by (instance) ({_G}client_connections)", "{{instance}}"),),
        ),
        Panel(
            title="Silence of clients while streams moved", unit="s", queries=_quantiles("resume_gap_seconds"),
            about="Time without bytes after an engine failed, until another one continued.",
        ),
        Panel(
            title="Pauses of streams for better classes", unit="s", queries=_quantiles("preempted_seconds"),
        ),
        Panel(
            title="Time until a lost engine was left", unit="s", queries=_quantiles("resume_detection_seconds"),
        ),
        Panel(
            title="Retries and fallbacks",
            queries=(
                (_rate("retries_total", "model"), "{{model}} retries"),
                (_rate("fallbacks_total", "requested, served"), "{{requested}} → {{served}}"),
            ),
        ),
        Panel(
            title="Rare events",
            queries=((f"sum by (event) (increase({_G}events_total[1h]))", "{{event}}, last hour"),),
        ),
        Panel(
            title="Processes that do not answer",
            queries=((f"sum by (instance) ({_G}processes_missing)", "{{instance}}"),),
        ),
    ),
)  # fmt: skip

OUTSIDE: Final = Board(
    name="longboat-replicas",
    title="Longboat: replicas and external models",
    panels=(
        Panel(
            title="Ready replicas", stacked=True,
            queries=((f"max by (model, replica) ({_G}upstream_ready)", "{{model}} {{replica}}"),),
        ),
        Panel(
            title="Suspect replicas",
            queries=((f"sum by (model, replica) ({_G}upstream_suspect)", "{{model}} {{replica}}"),),
            about="Gateway processes that recently failed to connect to the replica.",
        ),
        Panel(
            title="Requests in flight", stacked=True,
            queries=((f"sum by (model, replica) ({_G}upstream_requests_in_flight)", "{{model}} {{replica}}"),),
        ),
        Panel(
            title="Set by hand",
            queries=(
                (f"max by (model) ({_S}by_hand)", "{{model}} by hand"),
                (f"max by (model) ({_S}paused)", "{{model}} paused"),
            ),
        ),
        Panel(
            title="Requests to external addresses", unit="reqps",
            queries=((_rate("external_requests_total", "endpoint, outcome"), "{{endpoint}} {{outcome}}"),),
        ),
        Panel(
            title="Money for external models, by hour",
            queries=((f"sum by (model, currency) (increase({_G}external_cost_total[1h]))", "{{model}} {{currency}}"),),
        ),
    ),
)  # fmt: skip

NODE: Final = Board(
    name="longboat-node",
    title="Longboat: nodes",
    panels=(
        Panel(
            title="Load of a CPU", unit="percentunit", about="Above 1, processes wait for CPUs.",
            queries=((f"max by (instance) ({_N}load1) / max by (instance) ({_N}cpus)", "{{instance}}"),),
        ),
        Panel(
            title="Memory in use", unit="percentunit",
            queries=(
                (
                    f"1 - max by (instance) ({_N}memory_available_bytes) / max by (instance) ({_N}memory_bytes)",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Free bytes of the disk with the state", unit="bytes",
            queries=(
                (f"max by (instance) ({_N}disk_available_bytes)", "{{instance}} free"),
                (f"max by (instance) ({_N}disk_bytes)", "{{instance}} whole"),
            ),
        ),
        Panel(
            title="Requests that the node's gateway serves",
            queries=((f"sum by (instance) ({_G}requests_in_flight)", "{{instance}}"),),
        ),
        Panel(
            title="CPU of the gateway", unit="percentunit", about="1 is a whole core.",
            queries=((_rate("cpu_seconds_total", "instance"), "{{instance}}"),),
        ),
    ),
)  # fmt: skip


def _beside(title: str, name: str, unit: str, about: str = "") -> Panel:
    return Panel(
        title=title, unit=unit, about=about,
        queries=tuple(
            (f"max by (model) ({_P}{kind}_{name}{{{_ONE_MODEL}}})", f"{{{{model}}}} {kind}")
            for kind in ("predicted", "measured")
        ),
    )  # fmt: skip


PLANNER: Final = Board(
    name="longboat-planner",
    title="Longboat: predicted beside measured",
    variables=(("model", f"{_S}replicas_wanted"),),
    panels=(
        _beside("Time between tokens, mean", "inter_token_latency_seconds", "s", "Predicted for the measured load."),
        _beside("Time to first token, mean", "time_to_first_token_seconds", "s", "Predicted for the measured load."),
        _beside("Memory of the fullest rank", "rank_bytes", "bytes"),
        _beside("Blocks of the KV cache", "kv_blocks", "short"),
        Panel(
            title="Measured time between tokens, as a multiple of the predicted one",
            about="1 is a perfect prediction; above it, the model is slower than planned.",
            queries=(
                (
                    f"max by (model) ({_P}measured_inter_token_latency_seconds{{{_ONE_MODEL}}})"
                    f" / max by (model) ({_P}predicted_inter_token_latency_seconds{{{_ONE_MODEL}}})",
                    "{{model}}",
                ),
            ),
        ),
    ),
)  # fmt: skip

BOARDS: Final = (FLEET, MODEL, TENANT, GATEWAY, OUTSIDE, NODE, PLANNER)
