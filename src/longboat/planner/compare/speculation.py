"""Speculative decoding beside plain decoding: what a replica gains from proposed tokens, and where it begins to lose.

A step proposes ``k`` tokens and checks them in one pass of ``k + 1`` tokens for each request. If each proposal is
accepted with probability ``a``, a step brings ``(1 - a^(k+1)) / (1 - a)`` tokens (Leviathan et al., 2023, equation 1).
Few requests leave room for more tokens in a pass, as it mostly reads weights; with many, a pass computes, and takes
longer by what it checks. Mixtures of experts read more experts for more tokens, so they gain less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from longboat.catalog.names import nearest_names
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment
from longboat.planner.predict.kernels import kernel_class
from longboat.planner.predict.work import Pass, head_work, layer_work, stage_work
from longboat.planner.search.forecast import Forecast, Forecaster

__all__ = ("ACCEPTANCE", "Speculated", "Speculation", "parse_speculation", "speculated")

Method = Literal["mtp", "eagle3", "eagle", "draft", "ngram"]
# The usual probability that a proposal is accepted if those before it are. mtp: 81 to 82 % for DeepSeek-R1 (vllm pull
# request 12755), 76 to 84 % at further positions too (48892). eagle3: 2.8 to 3.6 tokens a step of 7 proposals (model
# card of nebius/EAGLE3-Llama-3.3-70B-Instruct, of public heads for Llama 8B and 70B). The others are our estimates;
# ngram depends most on the text.
ACCEPTANCE: dict[str, float] = {"mtp": 0.81, "eagle3": 0.7, "eagle": 0.6, "draft": 0.65, "ngram": 0.3}
USUAL_TOKENS: dict[str, int] = {"mtp": 1, "eagle3": 3, "eagle": 3, "draft": 4, "ngram": 3}
MOST_TOKENS = 64
EXAMPLE = "write --speculation mtp:1, or eagle3:3:0.7 with the share of proposals that are accepted"
# Requests on one replica at which speculation is looked at, to find where it begins to lose.
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# Constants of a step that no draft pass has: scheduling and sampling of the engine.
NOT_OF_DRAFTS = ("decode_step", "decode_sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The way in which tokens are proposed."""

    method: Method
    tokens: int  # proposed in each step
    acceptance: float  # probability that a proposal is accepted if those before it are
    assumed: bool = False  # ``acceptance`` is the usual one of the method
    draft: ModelShape | None = None  # model of the method ``draft``

    @property
    def tokens_a_step(self) -> float:
        """The mean number of tokens that a step brings."""
        if self.acceptance >= 1.0:
            return self.tokens + 1.0
        return (1.0 - float(self.acceptance ** (self.tokens + 1))) / (1.0 - self.acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculated:
    """The times of one replica with speculation beside those without, in seconds, with the plan's users."""

    speculation: Speculation
    users: float
    itl_s: float
    plain_itl_s: float
    draft_s: float  # of a step, that proposals take
    alone: float  # times as fast with one user
    loses_from: int  # users of a replica from which it is slower; 0: not up to the most that was looked at

    @property
    def gain(self) -> float:
        """How many times as fast tokens come."""
        return self.plain_itl_s / self.itl_s


def parse_speculation(text: str, draft: ModelShape | None = None) -> Speculation | None:
    """Read ``METHOD[:TOKENS[:ACCEPTANCE]]``; None for ``""``. Raises UserInputError."""
    if not text.strip():
        return None
    method, *numbers = (word.strip().lower() for word in text.split(":"))
    if method not in get_args(Method):
        near = nearest_names(method, get_args(Method))
        raise UserInputError(
            f"no way to speculate is known by the name {method!r}", hint=f"did you mean {near[0]}?" if near else EXAMPLE
        )
    if (method == "draft") != (draft is not None):
        raise UserInputError(
            "draft needs a model that proposes tokens" if draft is None else f"{method} takes no draft model",
            hint="--speculation draft:4 --draft-model Qwen3-0.6B",
        )
    tokens, acceptance = _numbers(text, numbers)
    return Speculation(
        method=method,  # type: ignore[arg-type]
        tokens=tokens or USUAL_TOKENS[method],
        acceptance=ACCEPTANCE[method] if acceptance is None else acceptance,
        assumed=acceptance is None,
        draft=draft,
    )


def _numbers(text: str, numbers: list[str]) -> tuple[int, float | None]:
    """Return the tokens (0: not given) and the acceptance (None: not given)."""
    try:
        tokens = int(numbers[0]) if numbers else 0
        acceptance = float(numbers[1]) if len(numbers) > 1 else None
    except ValueError:
        raise UserInputError(f"{text!r} has no number where one is expected", hint=EXAMPLE) from None
    if len(numbers) > 2:
        raise UserInputError(f"{text!r} has too many parts", hint=EXAMPLE)
    if numbers and not 1 <= tokens <= MOST_TOKENS:
        raise UserInputError(f"{text!r}: tokens are from 1 to {MOST_TOKENS}", hint=EXAMPLE)
    if acceptance is not None and not 0.0 <= acceptance <= 1.0:
        raise UserInputError(f"{text!r}: the acceptance is from 0 to 1", hint=EXAMPLE)
    return tokens, acceptance


def speculated(group: Forecast, speculation: Speculation, calibration: Calibration) -> Speculated:
    """Return what speculation changes for the replicas of a forecast."""
    maker = _Maker(group, speculation, calibration)
    (itl_s, plain_s), draft_s = maker.itl_s(group.users), maker.draft_s(group.users)
    alone_s, alone_plain_s = maker.itl_s(1.0)
    most = group.demand.settings.sequences or max(group.fit.max_sequences, 1)
    slower = (users for users in USERS if users <= most and (pair := maker.itl_s(float(users)))[0] > pair[1])
    return Speculated(
        speculation=speculation,
        users=group.users,
        itl_s=itl_s,
        plain_itl_s=plain_s,
        draft_s=draft_s,
        alone=alone_plain_s / alone_s,
        loses_from=next(slower, 0),
    )


class _Maker:
    """Times of one replica with and without speculation."""

    def __init__(self, group: Forecast, speculation: Speculation, calibration: Calibration) -> None:
        self.group, self.speculation = group, speculation
        self.deployment: Deployment = group.deployment
        self.forecaster = Forecaster(group.shape, group.demand, group.engine, calibration)
        machine = self.deployment.stages[0].machine
        kernel = kernel_class(group.shape, machine)
        self.constants = calibration.constants(engine=self.deployment.engine.name, kernel=kernel, machine=machine.name)

    def itl_s(self, users: float) -> tuple[float, float]:
        """Return the mean seconds between tokens with speculation, and without.

        The step grows by the work of the checked tokens, in the ratio of the time model, so factors of measured groups
        hold; a response decodes through the prompts of others as before.
        """
        plain = self.forecaster.at(self.group, users, 1).prediction
        batch = self._batch(plain.running)
        grown = self._step_s(batch, self.speculation.tokens) / self._step_s(batch, 0)
        step_s = plain.step_s.value * grown + self.draft_s(users)
        prompts_s = plain.itl_s.value - plain.step_s.value
        return step_s / self.speculation.tokens_a_step + prompts_s, plain.itl_s.value

    def _batch(self, running: float) -> float:
        return max(1.0, running / len(self.deployment.stages))

    def _seconds(self, work: dict[str, float]) -> float:
        return sum(self.constants[name] * value for name, value in work.items())

    def _pass(self, batch: float, proposed: int = 0) -> Pass:
        traffic = self.group.demand.traffic(1.0)
        context = traffic.mean_prompt_tokens + traffic.mean_output_tokens / 2.0
        return Pass(tokens=batch * (1 + proposed), sequences=batch, context_tokens=context, decoding=True)

    def _step_s(self, batch: float, proposed: int) -> float:
        """Return the seconds of a pass through all stages; the head computes each token that is checked."""
        step, stages = self._pass(batch, proposed), self.deployment.stages
        total = sum(self._seconds(stage_work(self.deployment, index, step)) for index in range(len(stages)))
        checked = head_work(self.deployment, stages[-1], replace(step, sequences=batch * proposed))
        return total + self.constants["decode_multiply"] * checked.get("decode_multiply", 0.0)

    def draft_s(self, users: float) -> float:
        """Return the seconds that the proposals of one step take, one pass after the other; scaled as the step is."""
        plain = self.forecaster.at(self.group, users, 1).prediction
        batch = self._batch(plain.running)
        scale = plain.step_s.value / self._step_s(batch, 0)
        return scale * self.speculation.tokens * self._seconds(self._draft_work(self._pass(batch)))

    def _draft_work(self, step: Pass) -> dict[str, float]:
        """Return the work of one proposal for each request: a layer and the head, or the whole draft model."""
        method, stage = self.speculation.method, self.deployment.stages[-1]
        if method == "ngram":
            return {}
        draft = self.speculation.draft
        if draft is not None:
            alone = replace(
                self.deployment, shape=draft, stages=(replace(stage, num_layers=len(draft.layers)),), expert=1
            )
            work = stage_work(replace(alone, attention_data=1, counted={}), 0, step)
        else:
            layer = self.group.shape.layers[-1]
            work = dict(layer_work(self.deployment, stage, layer, step))
            if method != "mtp":  # the layer of an EAGLE head is dense
                work = {name: value for name, value in work.items() if "expert" not in name}
            for name, value in head_work(self.deployment, stage, step).items():
                work[name] = work.get(name, 0.0) + value
        return {name: value for name, value in work.items() if name not in NOT_OF_DRAFTS}
