"""What is left of daily limits, from the usage of all gateways."""

from __future__ import annotations

from longboat.core.external import Budget, ExternalModel, Price
from longboat.core.policy import Policy, TenantPolicy
from longboat.routing.capacity.daily_rests import daily_limits, with_rests

CLOUD = ExternalModel(
    name="cloud",
    urls=("https://x",),
    limits=Budget(requests_per_day=10, tokens_per_day=1000, money_per_day=2.5),
    price=Price(input_per_million=1.0, output_per_million=2.0, currency="EUR"),
)
POLICY = Policy(
    tenants=(TenantPolicy(name="a", tokens_per_day=500), TenantPolicy(name="b")),
    external=(CLOUD, ExternalModel(name="free", urls=("https://y",))),
)


def row(tenant: str, model: str, day: str = "2026-01-02", **more: int) -> dict[str, object]:
    return {"day": day, "tenant": tenant, "model": model, "prompt_tokens": 30, "completion_tokens": 12, **more}


def test_what_is_left_is_told_for_each_limit() -> None:
    rows = [
        row("a", "m"),
        row("a", "cloud", sent=3, cost_nanos=500_000_000),
        row("b", "cloud", sent=1, cost_nanos=250_000_001),
        row("a", "cloud", day="2026-01-01", sent=7, cost_nanos=10**9),
        row("b", "free", sent=2),
    ]
    found = with_rests(daily_limits(POLICY), rows, "2026-01-02")
    assert found == [
        {"tenant": "a", "kind": "tokens_per_day", "limit": 500, "used": 84, "left": 416},
        {"model": "cloud", "kind": "requests_per_day", "limit": 10, "used": 4, "left": 6},
        {"model": "cloud", "kind": "tokens_per_day", "limit": 1000, "used": 84, "left": 916},
        {
            "model": "cloud",
            "kind": "money_per_day",
            "limit": 2.5,
            "currency": "EUR",
            "used": 0.750000001,
            "left": 1.749999999,
        },
    ]


def test_an_overspent_limit_has_nothing_left() -> None:
    rows = [row("a", "m", prompt_tokens=900)]
    assert with_rests(daily_limits(POLICY), rows, "2026-01-02")[0]["left"] == 0
    assert with_rests((), rows, "2026-01-02") == []
