"""Whether a replica with one request can keep an objective: where it cannot, no number of replicas does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from longboat.core.errors import Problem
from longboat.core.scaling import Objective
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.load import Load
from longboat.planner.predict.number import Number
from longboat.planner.predict.serving import predict
from longboat.planner.search.forecast import Forecast

__all__ = ("doubted", "unkept")


def unkept(forecast: Forecast, objectives: Sequence[Objective], calibration: Calibration) -> Problem | None:
    """Return the first limit that is below the lower end of what is predicted for a lone request."""
    for where, name, limit_ms, told in _limits(forecast, objectives, calibration):
        if limit_ms < told.low * 1e3:
            return Problem(
                where=f"{where}.{name}",
                what=f"no plan keeps {name}: {limit_ms:g}; {_alone(forecast, told)}, whatever the number of replicas",
                hint=f"write {name}: {ceil(told.high * 1e3)}, or split a replica over more or faster cards",
            )
    return None


def doubted(forecast: Forecast, objectives: Sequence[Objective], calibration: Calibration) -> Iterator[str]:
    """Yield a sentence for each limit that a lone request may miss."""
    for _, name, limit_ms, told in _limits(forecast, objectives, calibration):
        if told.low * 1e3 <= limit_ms < told.value * 1e3:
            yield f"{name}: {limit_ms:g} may not be kept: {_alone(forecast, told)}"


def _alone(forecast: Forecast, told: Number) -> str:
    tokens = forecast.demand.prompt_tokens
    return (
        f"a request of {tokens} prompt tokens alone takes {told.value * 1e3:.3g} ms "
        f"({told.low * 1e3:.3g} to {told.high * 1e3:.3g}) on {forecast.layout.cards_title}"
    )


def _limits(
    forecast: Forecast, objectives: Sequence[Objective], calibration: Calibration
) -> Iterator[tuple[str, str, float, Number]]:
    """Yield the place, the name and the value of each limit, with the prediction that it is for."""
    if forecast.outcome is None or not objectives:
        return
    demand = forecast.demand
    load = Load(concurrency=1.0, prompt_tokens=demand.prompt_tokens, output_tokens=demand.output_tokens)
    alone = predict(forecast.deployment, load, calibration)
    for at, one in enumerate(objectives):
        where = "replicas.slo" if len(objectives) == 1 else f"replicas.slo[{at}]"
        if one.ttft_ms is not None:
            yield where, "ttft_ms", one.ttft_ms, alone.ttft_s
        if one.itl_ms is not None:
            yield where, "itl_ms", one.itl_ms, alone.itl_s
