"""Plays faults in the fake engine: those that one request carries, and those that were armed in advance."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from longboat_fake.engine.faults import OF_ONE_ANSWER, Fault, StreamBroken

__all__ = ("FaultPlayer",)


class FaultPlayer:
    """The player of one engine's faults."""

    def __init__(
        self,
        gate: asyncio.Event,
        evict: Callable[[], None] = lambda: None,
        lose_events: Callable[[int], None] = lambda _num: None,
    ) -> None:
        self._gate = gate  # closed while the engine hangs
        self._evict = evict
        self._lose_events = lose_events
        self._armed: list[Fault] = []
        self.slow_factor = 1.0

    def arm(self, fault: Fault) -> None:
        """Play ``fault`` at the next response that reaches its token count; an engine's fault at 0 tokens at once."""
        if fault.kind == "none":
            self._armed.clear()
            self.slow_factor = 1.0
            self._gate.set()
        elif fault.after_tokens == 0 and fault.kind not in OF_ONE_ANSWER:
            self.play(fault)
        else:
            self._armed.extend([fault] * fault.times)

    def takes_error(self) -> bool:
        """Return whether the request that just came must be answered with an error."""
        due = next((fault for fault in self._armed if fault.kind == "error"), None)
        if due is not None:
            self._armed.remove(due)
        return due is not None

    async def play_due(self, own: Fault | None, num_produced: int) -> None:
        """Play the faults due after ``num_produced`` tokens of a response: its own one and an armed one."""
        due = [own] if own is not None and own.after_tokens == num_produced else []
        armed = [fault for fault in self._armed if fault.after_tokens <= num_produced and fault.kind != "error"]
        for fault in armed[:1]:  # the next armed fault is for another response
            self._armed.remove(fault)
            due.append(fault)
        for fault in due:
            await asyncio.sleep(0.02 if num_produced else 0)  # the tokens so far are sent first
            if fault.kind == "stall":
                await asyncio.Event().wait()
            self.play(fault)

    def play(self, fault: Fault) -> None:
        """Play ``fault`` now. Raises StreamBroken for a fault of one response."""
        match fault.kind:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                self._gate.clear()
            case "slow":
                self.slow_factor = fault.factor
            case "evict":
                self._evict()
            case "lose_events":
                self._lose_events(fault.times)
            case "none":
                self.arm(fault)
            case "break" | "truncate" | "garbage" | "nonsense" | "report":
                raise StreamBroken(fault.kind)
