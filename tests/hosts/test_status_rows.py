"""How ``longboat cluster status`` shows a host's node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from host_facts import WANTED, after, hosts_file, two

from longboat.cli.hosts.show import _row
from longboat.hosts.plan.facts import NodeState


@pytest.mark.parametrize(
    ("unit", "phase", "shown"),
    [
        ("active", "up", "up"),
        ("active", "rejoining", "rejoining"),
        ("active", "", "starting"),
        ("activating", "up", "starting"),
        ("failed", "up", "stopped"),
    ],
)
def test_a_node_whose_unit_does_not_run_is_not_up_whatever_its_record_says(unit: str, phase: str, shown: str) -> None:
    file = hosts_file()
    facts = replace(after(file, two(), WANTED)["one"], active=unit, node=NodeState(role="head", phase=phase))
    assert _row(0, file.hosts[0], facts, {})["node"] == shown
