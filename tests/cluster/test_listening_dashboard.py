"""A command waits for the dashboard of a head that has just been restarted, at the address that it then has."""

from __future__ import annotations

import socket

import pytest

from longboat.cluster.ray.session import listening_dashboard, written_by_dashboard
from longboat.core.errors import ClusterError


def test_a_dashboard_that_moved_is_waited_for_at_its_present_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        before = f"127.0.0.1:{closed.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        now = f"127.0.0.1:{listener.getsockname()[1]}"
        known = iter((before, before, now))
        assert listening_dashboard(lambda: next(known), within_s=60.0) == f"http://{now}"


def test_a_dashboard_that_stays_away_is_told_by_the_call_that_needs_it() -> None:
    assert listening_dashboard(lambda: "127.0.0.1:1", within_s=0.0) == "http://127.0.0.1:1"


def test_a_dashboard_on_another_machines_loopback_is_not_waited_for() -> None:
    assert listening_dashboard(lambda: "127.0.0.1:1", within_s=3600.0, gcs="10.0.0.1:6379") == "http://127.0.0.1:1"


def test_a_cluster_without_a_dashboard_is_refused_at_once() -> None:
    with pytest.raises(ClusterError, match="without Ray's dashboard"):
        listening_dashboard(lambda: None, within_s=3600.0)


def test_the_address_is_the_one_that_the_dashboard_wrote_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted head with its earlier state leaves its earlier address at webui:url."""
    from ray.experimental import internal_kv

    store = {"webui:url": b"127.0.0.1:1", "dashboard": b"127.0.0.1:2"}
    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key, namespace: store.get(key))
    assert written_by_dashboard() == "127.0.0.1:2"
    store.clear()
    assert written_by_dashboard() is None
