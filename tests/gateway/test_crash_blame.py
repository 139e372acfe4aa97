"""What one gateway process remembers of engines that died."""

from __future__ import annotations

from fake_clock import FakeClock

from longboat.gateway.http.request import request_digest
from longboat.gateway.upstreams.crash_blame import CrashBlame


def test_request_that_is_blamed_twice_is_poison_for_a_quarter_of_an_hour() -> None:
    clock = FakeClock()
    deaths = CrashBlame(clock)
    digest = request_digest(b"/v1/chat/completions", b"{}")
    assert [deaths.blame(digest), deaths.blame(digest)] == [False, True]
    clock.now_s += 800
    assert deaths.is_poison(b"/v1/chat/completions", b"{}")
    clock.now_s += 200
    assert not deaths.is_poison(b"/v1/chat/completions", b"{}")


def test_acquitted_request_is_no_poison() -> None:
    deaths = CrashBlame(FakeClock())
    digest = request_digest(b"/v1/completions", b"{}")
    deaths.blame(digest)
    deaths.acquit(digest)
    assert not deaths.blame(digest)
