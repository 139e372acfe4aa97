"""Which models a request may go to when one of them is outside the fleet, and where it overflows."""

from __future__ import annotations

import pytest

from longboat.core.external import ExternalModel, Overflow
from longboat.core.policy import Alias, Policy, WeightedPool
from longboat.routing.route_rules import HeadRoutes, Overflowing, Resolution, RuleBook

CLOUD = ExternalModel(name="cloud", urls=("https://h/v1",))
MODELS = ("big", "small", "cloud")


def resolve(policy: Policy, name: str, *, may_leave: bool) -> Resolution:
    routes = HeadRoutes(RuleBook(policy, MODELS), "a", (), {}, may_leave=may_leave)
    found = routes.resolve(name, "r1")
    assert found is not None
    return found


@pytest.mark.parametrize(("may_leave", "pools"), [(True, ("big", "cloud", "small")), (False, ("big", "small"))])
def test_fallback_outside_needs_permission(may_leave: bool, pools: tuple[str, ...]) -> None:
    policy = Policy(external=(CLOUD,), fallbacks={"big": ("cloud", "small")})
    assert resolve(policy, "big", may_leave=may_leave).pools == pools


def test_external_model_by_name_needs_none_and_falls_back_to_the_fleet() -> None:
    policy = Policy(external=(CLOUD,), fallbacks={"cloud": ("small",)})
    assert resolve(policy, "cloud", may_leave=False).pools == ("cloud", "small")


def test_overflow_stands_behind_the_fallbacks() -> None:
    policy = Policy(external=(CLOUD,), fallbacks={"big": ("small",)}, overflow={"big": Overflow(to="cloud", after_s=3)})
    found = resolve(policy, "big", may_leave=True)
    assert found.pools == ("big", "small", "cloud")
    assert found.overflow == Overflowing(at_pool=2, num_pools=2, after_s=3)
    closed = resolve(policy, "big", may_leave=False)
    assert (closed.pools, closed.overflow) == (("big", "small"), None)


def test_overflow_may_be_a_fallback_too() -> None:
    policy = Policy(fallbacks={"big": ("small",)}, overflow={"big": Overflow(to="small")})
    found = resolve(policy, "big", may_leave=False)
    assert (found.pools, found.overflow) == (("big", "small"), Overflowing(1, 2, 5.0))


def test_alias_leads_to_the_overflow_of_its_model() -> None:
    alias = Alias(name="chat", pools=(WeightedPool(model="big"),))
    policy = Policy(aliases=(alias,), overflow={"big": Overflow(to="small")})
    assert resolve(policy, "chat", may_leave=False).pools == ("big", "small")
