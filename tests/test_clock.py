from __future__ import annotations

import pytest

from longboat.clock import until_tick_s


@pytest.mark.parametrize(
    ("now_s", "left_s"), [(7.0, 0.1), (7.04, 0.06), (7.079, 0.021), (7.099, 0.101), (6.9999, 0.1001)]
)
def test_sleepers_meet_at_whole_multiples(now_s: float, left_s: float) -> None:
    assert until_tick_s(0.1, now_s) == pytest.approx(left_s)


def test_loops_with_several_periods_wake_together() -> None:
    wakes: set[float] = set()
    for period_s, start_s in ((0.1, 0.013), (0.1, 0.071), (0.2, 0.155), (1.0, 0.5)):
        now_s = start_s
        while now_s < 10.0:
            now_s += until_tick_s(period_s, now_s)
            wakes.add(round(now_s, 6))
    assert len(wakes) <= 101
