"""Speculative decoding, prefill apart and tiers of caches, beside the best plan: as sentences and as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.planning import Planner
from longboat.core.errors import UserInputError
from longboat.planner.compare.disaggregated import Apart, apart
from longboat.planner.compare.kv_tiers import SHORTEST, TierGain, parse_tier, tier_gain
from longboat.planner.compare.speculation import Speculated, parse_speculation, speculated
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.draft import mtp_draft
from longboat.planner.search.ranking import Plan
from longboat.planner.search.search import SearchResult

__all__ = ("Answers", "WhatIf", "answers", "with_draft")

MIB = 1024**2
# Links that are busy for this share of the time slow requests down.
FULL_LINK = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The changes to look at beside the best plan."""

    speculation: str = ""  # METHOD[:TOKENS[:ACCEPTANCE]]
    draft_model: str = ""
    apart: bool = False  # prefill and decode on replicas of their own
    kv_tiers: tuple[str, ...] = ()  # behind the cache, as the command line has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the changes bring."""

    notes: tuple[str, ...] = ()
    values: dict[str, Any]  # for ``--json``, by the name of the change


def with_draft(planner: Planner, asked: WhatIf, shape: ModelShape) -> Planner:
    """Return the planner with what proposes tokens: plans count its memory. Raises UserInputError, TransferError.

    shape: of the model, whose own layers may propose
    """
    if asked.draft_model and not asked.speculation.strip():
        raise UserInputError("a draft model without --speculation", hint="add --speculation draft:4")
    draft = planner.read(asked.draft_model) if asked.draft_model else None
    wanted = parse_speculation(asked.speculation, draft)
    if wanted is not None and wanted.method == "mtp" and (draft := mtp_draft(shape)) is None:
        raise UserInputError(
            f"{shape.name} has no layers that predict several tokens (MTP)",
            hint="--speculation eagle3, with a head trained for the model; or ngram; or draft:4 --draft-model MODEL",
        )
    return replace(planner, demand=replace(planner.demand, draft=draft)) if draft else planner


def answers(asked: WhatIf, planner: Planner, found: SearchResult) -> Answers:
    """Return what the changes bring to the best plan. Raises UserInputError for a mistake in them."""
    best, values = found.plans[0], dict[str, Any]()
    notes: list[str] = []
    draft = planner.demand.draft if asked.draft_model else None
    if (speculation := parse_speculation(asked.speculation, draft)) is not None:
        gained = speculated(max(best.groups, key=lambda one: one.tokens_per_s), speculation, planner.calibration)
        notes += speculation_notes(gained)
        if speculation.method in ("eagle", "eagle3"):
            notes.append(
                "the memory of an EAGLE head is not counted here: longboat check reads it from its config.json"
            )
        values["speculation"] = speculation_values(gained)
    if asked.apart:
        divided = apart(found.plans, found.cluster, planner.calibration)
        notes += apart_notes(divided, best)
        values["apart"] = None if divided is None else apart_values(divided, best)
    if asked.kv_tiers:
        group = max(best.groups, key=lambda one: one.tokens_per_s)
        pools = pools_of(found.cluster)
        gains = [tier_gain(parse_tier(text), group, pools, planner.calibration) for text in asked.kv_tiers]
        notes += [note for gain in gains for note in tier_notes(gain)]
        values["kv_tiers"] = [tier_values(gain) for gain in gains]
    return Answers(notes=tuple(notes), values=values)


def speculation_notes(found: Speculated) -> Iterator[str]:
    """Yield what speculation gains for the plan's load, and from which load on it loses."""
    told = found.speculation
    given = "usual, give your own" if told.assumed else "given"
    yield (
        f"speculation {told.method}:{told.tokens}: {told.acceptance:.0%} of proposals are accepted ({given}), so a "
        f"step brings {told.tokens_a_step:.2f} tokens; proposals take {found.draft_s * 1e3:.1f} ms of it"
    )
    gains = "faster" if found.gain >= 1.0 else "slower: leave it out for this load"
    yield (
        f"with it a token comes each {found.itl_s * 1e3:.1f} ms instead of {found.plain_itl_s * 1e3:.1f} "
        f"({found.users:.3g} users of a replica), {max(found.gain, 1 / found.gain):.2f} times {gains}; "
        f"{found.alone:.2f} times as fast for one user alone"
    )
    if found.loses_from:
        why = "as passes compute more than they read" if told.acceptance else "as no proposal is accepted"
        yield f"with {found.loses_from} or more users of a replica it is slower, {why}"


def speculation_values(found: Speculated) -> dict[str, Any]:
    """Return the same for ``--json``."""
    told = found.speculation
    return {
        "method": told.method,
        "tokens": told.tokens,
        "acceptance": told.acceptance,
        "acceptance_is_usual": told.assumed,
        "tokens_a_step": told.tokens_a_step,
        "users": found.users,
        "itl_s": found.itl_s,
        "plain_itl_s": found.plain_itl_s,
        "draft_s": found.draft_s,
        "gain": found.gain,
        "gain_of_one_user": found.alone,
        "loses_from_users": found.loses_from or None,
    }


def tier_notes(gain: TierGain) -> Iterator[str]:
    """Yield how much a tier keeps, what loading a prompt saves, and when it is worth it."""
    yield (
        f"{gain.tier.kind} behind the cache keeps {gain.tokens} tokens ({gain.tokens // gain.prompt_tokens} prompts of "
        f"{gain.prompt_tokens}) that the cache dropped; the replicas' own caches keep {gain.cache_tokens}"
    )
    needed = "computing is quicker at any speed of the tier"
    if gain.needed_bytes_per_s is not None:
        needed = f"loading takes as long as computing at {gain.needed_bytes_per_s / 1e9:.2g} GB/s a node"
    verdict = f"saves {(1 - gain.load_s / gain.compute_s):.0%}" if gain.is_worth_it else "is slower"
    yield (
        f"a prompt of {gain.prompt_tokens} tokens that is found there is loaded in {gain.load_s * 1e3:.1f} ms and "
        f"computed in {gain.compute_s * 1e3:.1f} ms: loading {verdict}; it is quicker {_lengths(gain)}; {needed}"
    )


def _lengths(gain: TierGain) -> str:
    return " and ".join(_range(lengths, gain.longest) for lengths in gain.worth) or "for no length"


def _range(lengths: tuple[int, int], longest: int) -> str:
    first, last = lengths
    if last < longest:
        return f"for up to {last} tokens" if first <= SHORTEST else f"for {first} to {last} tokens"
    return f"from {first} tokens on" if first > SHORTEST else "for every length"


def tier_values(gain: TierGain) -> dict[str, Any]:
    """Return the same for ``--json``."""
    names = ("tokens", "cache_tokens", "prompt_tokens", "load_s", "compute_s", "needed_bytes_per_s", "worth")
    values = {name: getattr(gain, name) for name in names}
    return {"kind": gain.tier.kind, "bytes_per_node": gain.tier.num_bytes, **values, "worth_it": gain.is_worth_it}


def apart_notes(found: Apart | None, best: Plan) -> Iterator[str]:
    """Yield what the best division into prefill and decode does, and which of both is better."""
    if found is None:
        yield "prefill and decode apart: no plan has two equal replicas on machines of one kind that could be divided"
        return
    one = f"{found.group.layout.cards_title}, {found.group.layout.split_title}"
    limits = f"; misses {found.missed}" if found.missed else ""
    yield (
        f"prefill and decode apart: {found.prefill} for prompts and {found.decode} for decoding (each {one}): first "
        f"token {found.ttft_s * 1e3:.0f} ms, between tokens {found.itl_s * 1e3:.1f} ms, {found.tokens_per_s:.0f} "
        f"tokens/s{limits}; a prompt's cache is {found.sent_bytes / MIB:.0f} MiB, {found.send_s * 1e3:.0f} ms over "
        f"{found.link}"
    )
    yield _verdict(found, best)


def _verdict(found: Apart, best: Plan) -> str:
    both = (
        f"the best plan has {best.ttft_s * 1e3:.0f} ms, {best.itl_s * 1e3:.1f} ms and {best.tokens_per_s:.0f} tokens/s"
    )
    if found.beats(best):
        why = "it keeps the limits" if best.missed and not found.missed else "decoding does not wait for prompts"
        return f"apart is better for this load: {why}; {both}"
    if found.missed and not best.missed:
        return f"replicas that do both are better for this load: they keep the limits; {both}"
    why = f"replicas for prompts are idle {1.0 - found.prefill_busy:.0%} of the time"
    if found.link_busy > FULL_LINK:
        why = f"{found.link} is full of caches on their way"
    return f"replicas that do both are better for this load, or as good: {both}; apart, {why}"


def apart_values(found: Apart, best: Plan) -> dict[str, Any]:
    """Return the same for ``--json``."""
    values = {name: getattr(found, name) for name in ("prefill", "decode", "users", "ttft_s", "itl_s", "tokens_per_s")}
    sent = {
        name: getattr(found, name) for name in ("sent_bytes", "send_s", "link", "link_busy", "prefill_busy", "missed")
    }
    return {**values, **sent, "replica": found.group.title, "better": found.beats(best)}
