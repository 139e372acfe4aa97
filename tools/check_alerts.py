"""Ask Prometheus itself about our alerts: ``make check-alerts``. It needs ``promtool`` (Debian's package prometheus).

``promtool`` reads the files that ``longboat dashboards`` writes. Then each alert gets a fault: it must fire while the
fault lasts, must not fire before, and must end with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from longboat.dashboards.alert_list import ALERTS, Alert
from longboat.dashboards.files import all_files

__all__ = ("PLANTED", "main")

_G, _S = "longboat_gateway_", "longboat_scaling_"
_MINUTE_S = 60
_BEFORE, _FAULT, _AFTER = 60, 120, 240
"""Minutes that all is well before the fault, that the fault lasts, and that all is well after it."""

Series = tuple[str, str, str]
"""A series, its values while all is well, and while something is wrong, in Prometheus's notation without repetitions: a
gauge's value, or what a counter grows by in a minute, with a sign."""

PLANTED: dict[str, tuple[Series, ...]] = {
    "LongboatGatewayDown": (('up{job="longboat",instance="a"}', "1", "0"),),
    "LongboatModelHasNoReplica": (
        (f'{_S}replicas_wanted{{model="m"}}', "1", "1"),
        (f'{_G}upstream_ready{{model="m",replica="r"}}', "1", "0"),
    ),
    "LongboatReplicasMissing": (
        (f'{_S}replicas_wanted{{model="m"}}', "2", "2"),
        (f'{_G}upstream_ready{{model="m",replica="r"}}', "1", "1"),
        (f'{_G}upstream_ready{{model="m",replica="s"}}', "1", "0"),
    ),
    "LongboatReplicasUnplaced": ((f'{_S}replicas_unplaced{{model="m"}}', "0", "2"),),
    "LongboatErrors": (
        (f'{_G}requests_total{{model="m",tenant="t",outcome="ok"}}', "+100", "+100"),
        (f'{_G}requests_total{{model="m",tenant="t",outcome="broken"}}', "+0", "+5"),
    ),
    "LongboatStreamsLost": ((f'{_G}resumes_total{{reason="lost",result="failed"}}', "+0", "+1"),),
    "LongboatQueueIsLong": (
        (f'{_G}queue_time_seconds_bucket{{model="m",tenant="t",le="1.0"}}', "+60", "+0"),
        (f'{_G}queue_time_seconds_bucket{{model="m",tenant="t",le="40.0"}}', "+60", "+60"),
        (f'{_G}queue_time_seconds_bucket{{model="m",tenant="t",le="+Inf"}}', "+60", "+60"),
    ),
    "LongboatRefusals": ((f'{_G}refusals_total{{code="queue_full",tenant="t"}}', "+0", "+60"),),
    "LongboatReplicaSuspect": ((f'{_G}upstream_suspect{{model="m",replica="r"}}', "0", "2"),),
    "LongboatScalingFlaps": ((f'{_S}lowered_total{{model="m"}}', "+0", "+1"),),
    "LongboatPrefixPredictionWrong": (
        (f'{_G}prefix_expected_tokens_total{{model="m",tenant="t"}}', "+6000", "+6000"),
        (f'{_G}prefix_found_tokens_total{{model="m",tenant="t"}}', "+6000", "+600"),
    ),
    "LongboatPoisonRequests": ((f'{_G}events_total{{event="poison_request"}}', "+0", "+1"),),
    "LongboatLimitsWithoutRedis": ((f'{_G}events_total{{event="counted_without_redis"}}', "+0", "+9"),),
    "LongboatGatewayProcessMissing": ((f"{_G}processes_missing", "0", "1"),),
    "LongboatGatewayLags": ((f'{_G}event_loop_lag_max_seconds{{process="worker-0"}}', "0", "2"),),
    "LongboatLogLinesDropped": ((f'{_G}events_total{{event="log_lines_dropped"}}', "+0", "+3"),),
}


def main() -> int:
    """Return the exit status."""
    if (promtool := shutil.which("promtool")) is None:
        print("promtool is not installed: apt-get install prometheus", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        for name, text in all_files(("127.0.0.1:8000",)).items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(text)
        tests = {"rule_files": ["longboat-alerts.yaml"], "tests": [_test(alert) for alert in ALERTS]}
        (Path(folder) / "tests.yaml").write_text(yaml.safe_dump(tests))
        checks = (
            ("check", "rules", "longboat-alerts.yaml"),
            ("check", "config", "prometheus.yaml"),
            ("test", "rules", "tests.yaml"),
        )
        codes = [subprocess.run([promtool, *words], cwd=folder, check=False).returncode for words in checks]
    print(f"{len(ALERTS)} alerts: {'all fire with their fault and end with it' if not any(codes) else 'FAILED'}")
    return int(any(codes))


def _test(alert: Alert) -> dict[str, Any]:
    """Return promtool's document: well, wrong, well again."""
    moments = ((_BEFORE, False), (_BEFORE + _FAULT, True), (_BEFORE + _FAULT + _AFTER, False))
    return {
        "name": alert.name,
        "interval": "1m",
        "input_series": [{"series": name, "values": _values(*values)} for name, *values in PLANTED[alert.name]],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{at}m",
                "exp_samples": [{"labels": "{}", "value": int(fires)}],
            }
            for at, fires in moments
        ],
    }


def _values(well: str, wrong: str) -> str:
    """Return the values of a series, one a minute. A counter goes on from where it was."""
    if well[0] not in "+":
        return f"{well}x{_BEFORE} {wrong}x{_FAULT} {well}x{_AFTER}"
    first = int(well) * _BEFORE
    then = first + int(wrong) * _FAULT
    return f"0{well}x{_BEFORE} {first + int(wrong)}{wrong}x{_FAULT - 1} {then + int(well)}{well}x{_AFTER}"


if __name__ == "__main__":
    sys.exit(main())
