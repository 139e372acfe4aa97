"""The alerts of a fleet, each with what it means and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ("ALERTS", "Alert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule of Prometheus, with its runbook."""

    name: str
    expr: str  # PromQL that has a sample while something is wrong
    for_s: int  # seconds that this must last
    severity: Literal["page", "ticket"]  # page: users notice now; ticket: somebody should look today
    summary: str  # one sentence, which may use labels as Prometheus's templates write them
    meaning: str  # why it matters
    steps: tuple[str, ...]  # what to do, in order


ALERTS: Final = (
    Alert(
        name="LongboatGatewayDown",
        expr='up{job="longboat"} == 0',
        for_s=60,
        severity="page",
        summary="The gateway {{ $labels.instance }} does not answer Prometheus.",
        meaning="Clients of this gateway get no answer. Other gateways still serve the same models.",
        steps=(
            "`longboat status`: does the node of this gateway appear, and is its gateway `ready`?",
            "If the node is gone, look at the machine. `longboat node start` brings it back.",
            "If the node is there, `gateway/gateway.log` in its run folder says why its gateway ends.",
        ),
    ),
    Alert(
        name="LongboatModelHasNoReplica",
        expr=(
            "max by (model) (longboat_scaling_replicas_wanted) > 0 unless"
            " sum by (model) (longboat_gateway_upstream_ready) > 0"
        ),
        for_s=120,
        severity="page",
        summary="Model {{ $labels.model }} wants {{ $value }} replicas, and none is ready.",
        meaning="Requests for this model wait, and are refused with 503 when their time is up.",
        steps=(
            "`longboat status --why`: the phase of each replica and what it waits for.",
            "`longboat logs MODEL`: the engine's last words, if it ends while it starts.",
            "If no node has room, add one, or lower `replicas` or `resources` in the fleet file.",
        ),
    ),
    Alert(
        name="LongboatReplicasMissing",
        expr=(
            "max by (model) (longboat_scaling_replicas_wanted)"
            " - count by (model) (max by (model, replica) (longboat_gateway_upstream_ready) > 0) > 0"
        ),
        for_s=900,
        severity="ticket",
        summary="Model {{ $labels.model }} has had {{ $value }} replicas too few for 15 minutes.",
        meaning="The model serves with less capacity than was decided.",
        steps=(
            "`longboat status --why`: which replica is not ready, and why.",
            "`longboat logs MODEL --replica NAME`: what its engine says.",
        ),
    ),
    Alert(
        name="LongboatReplicasUnplaced",
        expr="max by (model) (longboat_scaling_replicas_unplaced) > 0",
        for_s=300,
        severity="ticket",
        summary="No node has room for {{ $value }} replicas of {{ $labels.model }}.",
        meaning="The load or the fleet file asks for more replicas than the machines can hold.",
        steps=(
            "`longboat status --why`: how many more nodes of which kind are needed.",
            "Add nodes (`longboat node start --join …`), or lower `max` of the model.",
        ),
    ),
    Alert(
        name="LongboatErrors",
        expr=(
            'sum by (model) (rate(longboat_gateway_requests_total{outcome=~"engine_error|broken"}[5m]))'
            " / sum by (model) (rate(longboat_gateway_requests_total[5m])) > 0.01"
        ),
        for_s=300,
        severity="page",
        summary="{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} fail.",
        meaning="Engines answered with errors, or responses broke off and could not be continued.",
        steps=(
            "`longboat status`: are replicas suspect, or do they restart?",
            "`longboat why REQUEST-ID` with an id from the access log (`outcome`): which replica failed, and how.",
            "`longboat logs MODEL`: errors of the engine. One replica alone: `longboat drain replica MODEL/NAME`.",
        ),
    ),
    Alert(
        name="LongboatStreamsLost",
        expr='sum by (reason) (increase(longboat_gateway_resumes_total{result="failed"}[10m])) > 0',
        for_s=0,
        severity="ticket",
        summary="{{ $value | humanize }} streams lost their engine ({{ $labels.reason }}) and could not be continued.",
        meaning="Clients saw an answer break off. Longboat continues streams where the engine proves that it can.",
        steps=(
            "`longboat status`: the resume level of the model's replicas. `none` cannot continue anything.",
            "Are there at least two replicas? A stream of the only replica waits until a new one is ready.",
            "`longboat why REQUEST-ID` shows the attempts.",
        ),
    ),
    Alert(
        name="LongboatQueueIsLong",
        expr=(
            "histogram_quantile(0.95, sum by (model, le) (rate(longboat_gateway_queue_time_seconds_bucket[5m]))) > 10"
        ),
        for_s=600,
        severity="ticket",
        summary="Requests for {{ $labels.model }} wait {{ $value | humanizeDuration }} for room (p95).",
        meaning="All replicas are full. Tenants with a larger weight or a better class wait less than others.",
        steps=(
            "`longboat status --why`: does scaling want more replicas, and what stops it?",
            "`longboat usage`: which tenant sends the load? Its limits are `requests_per_minute`, `tokens_per_day`.",
            "Raise `max` of the model, or set `gateway.overflow`.",
        ),
    ),
    Alert(
        name="LongboatRefusals",
        expr=(
            "sum by (code) (rate(longboat_gateway_refusals_total"
            '{code=~"queue_full|wait_too_long|queue_timeout|deadline|model_not_ready|no_table"}[5m])) > 0.1'
        ),
        for_s=300,
        severity="ticket",
        summary="The gateways refuse {{ $value | humanize }} requests a second with {{ $labels.code }}.",
        meaning="There is less capacity than load. Each refusal has a true `Retry-After`.",
        steps=(
            "`longboat status --why`, and the alerts about replicas.",
            "The dashboard *Tenants* shows who is refused.",
        ),
    ),
    Alert(
        name="LongboatReplicaSuspect",
        # A replica that fails is tried every few seconds, and is not suspect in the moment before.
        expr="sum by (model, replica) (max_over_time(longboat_gateway_upstream_suspect[1m])) > 0",
        for_s=120,
        severity="ticket",
        summary="Gateways avoid replica {{ $labels.replica }} of {{ $labels.model }}: it fails, or is slow.",
        meaning="Its connections fail, its answers break off, or it is far slower than other replicas of the model.",
        steps=(
            "`longboat status`: its node, and whether other replicas there are suspect too: then it is the network.",
            "`longboat logs MODEL --replica NAME`; `longboat drain replica MODEL/NAME` replaces it.",
        ),
    ),
    Alert(
        name="LongboatScalingFlaps",
        expr="max by (model) (increase(longboat_scaling_lowered_total[1h])) > 6",
        for_s=0,
        severity="ticket",
        summary="The number of replicas of {{ $labels.model }} was lowered {{ $value | humanize }} times in an hour.",
        meaning="Each start loads the weights again. The delays are too short for this load.",
        steps=(
            "`longboat status --why`: the reasons of the last decisions.",
            "Raise `downscale_delay_s`, or `min`. A surge that comes by the clock belongs into `schedule`.",
        ),
    ),
    Alert(
        name="LongboatPrefixPredictionWrong",
        expr=(
            "sum by (model) (rate(longboat_gateway_prefix_found_tokens_total[30m]))"
            " / sum by (model) (rate(longboat_gateway_prefix_expected_tokens_total[30m])) < 0.7"
            " and sum by (model) (rate(longboat_gateway_prefix_expected_tokens_total[30m])) > 10"
        ),
        for_s=1800,
        severity="ticket",
        summary="{{ $value | humanizePercentage }} of the cached tokens expected for {{ $labels.model }} were there.",
        meaning="Requests are sent to replicas for a cache that is gone, so the first token comes later than it could.",
        steps=(
            "`longboat routes MODEL --watch`: is one replica's share wrong, or all?",
            "A replica whose events are lost heals within seconds; `longboat logs MODEL` names gaps.",
        ),
    ),
    Alert(
        name="LongboatPoisonRequests",
        expr='sum(increase(longboat_gateway_events_total{event="poison_request"}[15m])) > 0',
        for_s=0,
        severity="ticket",
        summary="{{ $value | humanize }} requests were refused because engines crashed when they began them.",
        meaning="A request that ends an engine is not tried on all others. The engine has a defect.",
        steps=(
            "The access log has these requests with the error `poison_request`: the tenant, the size, the path.",
            "`longboat logs MODEL`: the crash. Report it to the engine's authors with the request's fields.",
        ),
    ),
    Alert(
        name="LongboatLimitsWithoutRedis",
        expr='sum(increase(longboat_gateway_events_total{event="counted_without_redis"}[5m])) > 0',
        for_s=300,
        severity="ticket",
        summary="Limits of tenants are counted by each node alone: Redis does not answer.",
        meaning="A tenant may use its limit once on each node.",
        steps=("Check the Redis of `gateway.redis.url`, and the network between gateways and Redis.",),
    ),
    Alert(
        name="LongboatGatewayProcessMissing",
        expr="longboat_gateway_processes_missing > 0",
        for_s=120,
        severity="ticket",
        summary="{{ $value }} gateway processes of {{ $labels.instance }} do not answer their parent.",
        meaning="They are overloaded or stuck; figures of this node are incomplete.",
        steps=(
            "The panel *Event loop lag* of the dashboard *Gateways*: is the machine overloaded?",
            "`gateway/gateway.log` in the node's run folder; `longboat drain gateway NODE` moves clients away.",
        ),
    ),
    Alert(
        name="LongboatGatewayLags",
        expr="max by (instance, process) (longboat_gateway_event_loop_lag_max_seconds) > 0.5",
        for_s=300,
        severity="ticket",
        summary="Process {{ $labels.process }} of {{ $labels.instance }} is {{ $value | humanizeDuration }} late.",
        meaning="Every token of its streams comes late. The process or its machine lacks CPU time.",
        steps=(
            "Compare its CPU with one core: at a full core, raise `gateway.workers`.",
            "Otherwise something else uses the machine's CPUs: engines on CPUs should leave the gateway some.",
        ),
    ),
    Alert(
        name="LongboatLogLinesDropped",
        expr='sum by (instance) (increase(longboat_gateway_events_total{event="log_lines_dropped"}[15m])) > 0',
        for_s=0,
        severity="ticket",
        summary="{{ $value | humanize }} lines of the access log of {{ $labels.instance }} were lost.",
        meaning="The disk is full, or too slow for the log.",
        steps=("`df` of the folder in `gateway.access_log`; lower `access_log_keep`, or move the log.",),
    ),
)
