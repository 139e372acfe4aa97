"""Chooses the engine of one request, by the routing of its model, and begins its account there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.calls.prompts import prompt_of
from longboat.gateway.exchange.life import Engine, View
from longboat.gateway.records.routed import Routed
from longboat.routing.adapters import pick_with_adapter
from longboat.routing.pick import pick

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.calls.state import GatewayState
    from longboat.gateway.calls.trip import Trip
    from longboat.gateway.upstreams.upstream import Upstream
    from longboat.routing.policies.contract import Reason
    from longboat.routing.prefixes.prompt import Prompt
    from longboat.routing.router import Router

__all__ = ("Selection",)

_NO_PREFILL: Final = frozenset((BodyKind.TOKENIZE, BodyKind.DETOKENIZE, BodyKind.COUNT_TOKENS, BodyKind.RENDER))
"""Requests that engines answer without computing a prompt."""


class Selection(View):
    """The choice among a model's engines. Requests that cost no work, or that have no choice, are not counted."""

    __slots__ = ("_call", "_state", "now_s")

    def __init__(self, state: GatewayState, call: Call) -> None:
        self._state = state
        self._call = call
        self.now_s = 0.0  # monotonic, of the event that asks

    def choose(
        self, model: str, engines: Sequence[Engine], tried: frozenset[str], *, adapter: str, overfull: bool
    ) -> tuple[Engine, Reason] | None:
        """Return one of the engines and why; None where none that was not tried has room."""
        call, turn = self._call, self._state.next_turn()
        call.routed = None
        router = self._router(model)
        if call.prompt is None and call.facts is not None and (router is not None or self._state.recorder.is_on):
            hashed = router is None or router.policy.reads_prefixes
            call.prompt = prompt_of(call, self._key(), hashed=hashed)
        if router is not None and call.prompt is not None:
            return self._routed(router, call.prompt, engines, turn, tried, adapter=adapter, overfull=overfull)
        if adapter:
            return pick_with_adapter(engines, adapter, turn=turn, tried=tried, overfull=overfull)
        engine = pick(engines, turn=turn, tried=tried, overfull=overfull)
        return None if engine is None else (engine, "")

    def _key(self) -> str:
        """Return what no other request of any gateway is called: its id, unless the client chose that."""
        request = self._call.request
        return self._state.new_request_id() if b"x-request-id" in request.noted else request.request_id

    def _routed(
        self, router: Router, prompt: Prompt, engines: Sequence[Engine], turn: int, tried: frozenset[str], *,
        adapter: str, overfull: bool,
    ) -> tuple[Engine, Reason] | None:  # fmt: skip
        call, now_s = self._call, self.now_s
        sticky = call.plan.sticky if call.plan is not None else ""
        upstreams = cast("Sequence[Upstream]", engines)  # as the table has them
        found = router.choose(
            prompt, upstreams, turn=turn, now_s=now_s, tried=tried, overfull=overfull, adapter=adapter, sticky=sticky
        )
        if found is None:
            return None
        engine, choice, keys = found
        call.routed = Routed(choice, keys, router, prompt)
        return engine, choice

    def begin_trip(self, upstream: Upstream, now_s: float) -> Trip | None:
        """Count the request at the engine that it is sent to; None where the router did not choose that engine."""
        call = self._call
        routed = call.routed
        if routed is None:
            return None
        if routed.key != upstream.key:  # a paused stream ends where the last replica of its revision leaves
            call.routed = None
            return None
        return self._state.trips.begin(routed, now_s)

    def _router(self, model: str) -> Router | None:
        call = self._call
        if call.facts is None or call.pinned or call.facts.kind in _NO_PREFILL:
            return None
        pool = self._state.table.pool(model)
        return None if pool is None or len(pool.upstreams) < 2 or pool.outside is not None else pool.router
