"""TTFT, ITL and tokens per second of a replica under a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longboat.planner.memory.engine import EngineTraits
from longboat.planner.predict.constants import Calibration, Measured, Spread
from longboat.planner.predict.deployment import Deployment
from longboat.planner.predict.features import Features, features_of
from longboat.planner.predict.kernels import kernel_class
from longboat.planner.predict.load import Load
from longboat.planner.predict.number import Number, Provenance
from longboat.planner.predict.queueing import first_token_passes, interference_share, polled_steps

__all__ = ("Prediction", "Times", "predict", "times_of")


@dataclass(frozen=True, kw_only=True)
class Times:
    """The times of one replica in seconds, without intervals."""

    itl_s: float
    ttft_s: float
    step_s: float  # one decode step without prompts of others
    prefill_s: float  # one prompt alone, from its start to its end
    queue_s: float  # the part of ``ttft_s`` that waits for room in the cache
    waiting: float  # requests that wait for room, for each one that runs
    mean_output_tokens: float

    def queued_s(self, itl_factor: float, ttft_factor: float) -> float:
        """Return the wait for room where a group's measured factors change the times.

        Little's law: a request waits for as many whole lives of others as there are requests waiting for each one
        that runs.
        """
        served_s = ttft_factor * (self.ttft_s - self.queue_s)
        return self.waiting * (served_s + itl_factor * self.itl_s * self.mean_output_tokens)

    def scaled(self, itl_factor: float, ttft_factor: float) -> tuple[float, float]:
        """Return ITL and TTFT under a group's measured factors."""
        served_s = ttft_factor * (self.ttft_s - self.queue_s)
        return self.itl_s * itl_factor, served_s + self.queued_s(itl_factor, ttft_factor)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted speed of one replica under the load."""

    ttft_s: Number
    itl_s: Number
    total_tokens_per_s: Number  # output tokens of the replica
    running: float  # requests that decode at once; fewer than asked for where the cache is full
    alone_step_s: float  # seconds of a decode step, without an interval
    alone_prefill_s: float  # seconds of a prompt, without an interval

    @property
    def request_tokens_per_s(self) -> Number:
        """Output tokens of one request while it decodes."""
        return self.itl_s.map(lambda seconds: 1.0 / seconds)

    @property
    def step_s(self) -> Number:
        """A decode step alone, a part of ``itl_s``."""
        return self.itl_s.scaled(self.alone_step_s)

    @property
    def prefill_s(self) -> Number:
        """A prompt alone, a part of ``ttft_s``."""
        return self.ttft_s.scaled(self.alone_prefill_s)


def predict(
    deployment: Deployment, load: Load, calibration: Calibration, *, max_sequences: float | None = None
) -> Prediction:
    """Predict a replica. max_sequences: that fit into the cache at once; None: as many as are asked for."""
    machine = deployment.stages[0].machine
    kernel = kernel_class(deployment.shape, machine)
    constants = calibration.constants(engine=deployment.engine.name, kernel=kernel, machine=machine.name)
    features = features_of(deployment, load, max_sequences=max_sequences)
    times = times_of(features, deployment.engine, load, constants)
    group = calibration.groups.get((deployment.shape.name, machine.name, deployment.engine.name))
    provenance = _provenance(calibration, group, deployment, kernel)
    itl_factor, ttft_factor = (group.itl_factor, group.ttft_factor) if group else (1.0, 1.0)
    itl_s, ttft_s = times.scaled(itl_factor, ttft_factor)
    itl = _number(itl_s, provenance, calibration.measured_itl_spread if group else calibration.itl_spread)
    ttft = _number(ttft_s, provenance, calibration.measured_ttft_spread if group else calibration.ttft_spread)
    served_s = ttft_s - times.queued_s(itl_factor, ttft_factor)
    return Prediction(
        ttft_s=ttft,
        itl_s=itl,
        total_tokens_per_s=itl.map(lambda seconds: _total(load, features.running, served_s, seconds)),
        running=features.running,
        alone_step_s=times.step_s * itl_factor,
        alone_prefill_s=times.prefill_s * ttft_factor,
    )


def times_of(features: Features, engine: EngineTraits, load: Load, constants: Mapping[str, float]) -> Times:
    """Apply the time model itself."""
    step_s = features.decode_hops_s + sum((constants[name] * value for name, value in features.decode.items()), 0.0)
    compute_s = sum((constants[name] * value for name, value in features.prompt.items()), 0.0)
    prefill_s, busy_s = compute_s + features.prompt_hops_s, compute_s * features.prompt_busy
    share = interference_share(engine, load, running=features.running)
    itl_s = step_s + constants["interference"] * share * busy_s
    decode_s = itl_s * load.mean_output_tokens
    passes = first_token_passes(
        engine,
        load,
        running=features.running,
        busy_ratio=_busy_ratio((features.running - 1.0) * busy_s, decode_s, busy_s),
    )
    waiting = max(0.0, load.concurrency / features.running - 1.0)
    wait_s = constants["wait"] * (prefill_s + (passes - 1.0) * busy_s)
    first_steps = constants["first_steps"] + polled_steps(engine, load, running=features.running)
    served_s = constants["floor"] + wait_s + first_steps * step_s
    queue_s = waiting * (served_s + decode_s)
    return Times(
        itl_s=itl_s,
        ttft_s=served_s + queue_s,
        step_s=step_s,
        prefill_s=prefill_s,
        queue_s=queue_s,
        waiting=waiting,
        mean_output_tokens=load.mean_output_tokens,
    )


def _busy_ratio(prefills_s: float, decode_s: float, own_s: float) -> float:
    """Share of a request's life in which the engine computes prompts of others."""
    return prefills_s / (decode_s + own_s)


def _total(load: Load, running: float, first_token_s: float, itl_s: float) -> float:
    """Return output tokens per second while ``running`` requests are served; time in the queue is not counted.

    first_token_s: from the moment that a request has room in the cache to its first token
    """
    life_s = first_token_s + itl_s * load.mean_output_tokens
    return running * load.mean_output_tokens / life_s


def _provenance(calibration: Calibration, group: Measured | None, deployment: Deployment, kernel: str) -> Provenance:
    if group is not None:
        return "measured here" if group.here else "measured elsewhere"
    if kernel in calibration.kernels and deployment.engine.name in calibration.engines:
        return "computed, constants measured elsewhere"
    return "computed"


def _number(value: float, provenance: Provenance, spread: Spread) -> Number:
    return Number(value=value, low=value * spread.low, high=value * spread.high, provenance=provenance)
