"""A connection of the command line to the cluster: nodes, Serve, the controller, work on single nodes."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from longboat.cluster.fleet.applications import CONTROLLER_RESTARTS
from longboat.cluster.host.cluster_token import cluster_token, gcs_refuses, token_mode
from longboat.cluster.host.ray_command import CONNECT_ENV
from longboat.cluster.host.ray_start import can_connect
from longboat.cluster.node.head_question import HeadAwayError, asked_within
from longboat.cluster.protocol.names import CONTROLLER_APP, NAMESPACE, daemon_name
from longboat.cluster.protocol.node_entry import read_node
from longboat.cluster.ray.fleet_view import FleetView
from longboat.core.errors import ClusterError
from longboat.user import user_home

if TYPE_CHECKING:
    from longboat.cluster.preflight.checks import PreflightRequest
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.core.topology import Node

__all__ = ("Session", "listening_dashboard", "require_ray", "sigterm_kept", "written_by_dashboard")

CALL_TIMEOUT_S = 15.0
LISTEN_S = 5.0
END_S = 10.0
DASHBOARD_S = 30.0
"""The dashboard starts after the rest of the head, and a cluster cannot be managed without it."""
INSTALL_HINT = "pip install 'longboat[cluster]'"
NO_CLUSTER_HINT = (
    "longboat node start --head starts one here; longboat node start --join ADDRESS joins one; "
    "RAY_ADDRESS, where it is set, leads elsewhere"
)


def require_ray() -> None:
    """Check that Ray is installed. Raises ClusterError where it is not."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError("Ray is not installed, which a cluster needs", hint=INSTALL_HINT)


def _require_listener(address: str) -> bool:
    """Return whether the address is HOST:PORT, of which this can be asked.

    Raises ClusterError where nothing listens there: Ray itself would try for many minutes.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return False
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=LISTEN_S).close()
    except OSError as error:
        raise ClusterError(f"no cluster answers at {address}: {error}", hint=NO_CLUSTER_HINT) from error
    return True


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keep what SIGTERM does to this command, which Ray would end with exit code 15.

    A command that leaves SIGTERM alone exits with 143, as a shell expects, after its clean-up.
    """

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, leave if before in (signal.SIG_DFL, None) else before)


def listening_dashboard(address: Callable[[], str | None], within_s: float = DASHBOARD_S, gcs: str = "") -> str:
    """Return the URL of the dashboard, through which Serve is steered, once it listens there, or ``within_s`` is over.

    address: reads what the cluster knows: until the dashboard of a restarted head is up, that is its earlier address
    gcs: the cluster's address; a dashboard that only another machine can reach is not waited for

    Raises ClusterError where the cluster runs without a dashboard.
    """
    deadline_s = time.monotonic() + within_s
    while found := address():
        is_elsewhere = bool(gcs) and _is_on_loopback(found) and not _is_on_loopback(gcs)
        if can_connect(found, LISTEN_S) or is_elsewhere or time.monotonic() >= deadline_s:
            return f"http://{found}"
        time.sleep(0.2)
    raise ClusterError(
        "this cluster runs without Ray's dashboard, which steers Ray Serve",
        hint="start the head with longboat node start --head, or with ray start --head --include-dashboard true",
    )


def written_by_dashboard() -> str | None:
    """Return the address that the dashboard itself wrote into the cluster's store; None where it never ran.

    A restarted head that kept its state writes the earlier address as ``webui:url``, where another port was chosen.
    """
    from ray._private.ray_constants import DASHBOARD_ADDRESS, KV_NAMESPACE_DASHBOARD
    from ray.experimental.internal_kv import _internal_kv_get

    found: bytes | None = _internal_kv_get(DASHBOARD_ADDRESS, namespace=KV_NAMESPACE_DASHBOARD)
    return found.decode() if found else None


def _is_on_loopback(address: str) -> bool:
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def _joined(env: Mapping[str, str]) -> str:
    """Connect this process to Ray; return the address of the cluster's store.

    Raises ClusterError when no cluster answers there.
    """
    if _require_listener(env["RAY_ADDRESS"]):
        env = {**env, **token_mode(env, user_home(), gcs_refuses)}
    os.environ.update({**env, **CONNECT_ENV})
    import ray

    try:
        with sigterm_kept():
            context = ray.init(
                address=env["RAY_ADDRESS"],
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        why = (str(error.__cause__ or "") or str(error)).splitlines()[0]  # Ray's own words leave the cause out
        raise ClusterError(f"no cluster answers at {env['RAY_ADDRESS']}: {why}", hint=NO_CLUSTER_HINT) from error
    return str(context.address_info["gcs_address"])


class Session(FleetView):
    """A connection through Ray, which can run work on nodes."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """``env``: what ``cluster.ray_node.connect_env`` gives: address of the cluster and where its token is.

        Raises ClusterError when there is no cluster at that address, or no Ray here.
        """
        require_ray()
        gcs = _joined(env)
        import ray

        self._ray, self._env = ray, env
        try:
            dashboard = listening_dashboard(written_by_dashboard, gcs=gcs)
        except ray.exceptions.RayError as error:
            what = f"the cluster at {env['RAY_ADDRESS']} went away: {error}"
            raise ClusterError(what, hint=NO_CLUSTER_HINT) from error
        super().__init__(gcs, dashboard, cluster_token(env, user_home()))
        self._controller: Any = None

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Disconnect from Ray. Serve can still be asked; ``rejoin`` connects again.

        A process that is connected when the cluster ends gets Ray's log of that on stderr, and is ended after a minute.
        """
        self._controller = None
        try:
            asked_within(self._ray.shutdown, END_S)
        except HeadAwayError:  # it may hold the locks of whatever else is asked; the process's end is enough
            return

    def rejoin(self) -> None:
        """Connect to Ray again after ``leave``. Raises ClusterError where the cluster is gone."""
        if not self._ray.is_initialized():
            _joined(self._env)

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes that are alive."""
        return tuple(read_node(entry) for entry in asked_within(self._ray.nodes) if entry["Alive"])

    def report(self) -> FleetReport | None:
        """Return the controller's report; None when no fleet is up.

        Raises ClusterError when a fleet is up but its controller does not answer; ControllerFailedError, which is
        one, when Serve has given the controller up.
        """
        if self._controller is None:  # asked only then, because it is expensive: Serve collects all its details
            if not self.apps.has_fleet():
                return None
            self.apps.check_controller()
        try:
            report: FleetReport = self._controller_handle().report.remote().result(timeout_s=CALL_TIMEOUT_S)
            return report
        except Exception as error:
            self._controller = None
            raise ClusterError(
                f"the fleet's controller does not answer ({type(error).__name__})",
                hint=CONTROLLER_RESTARTS,
            ) from error

    def scaling_history(self) -> dict[str, Any]:
        """Return what the controller's scaler saw and decided lately.

        Raises ClusterError when the controller does not answer.
        """
        try:
            handle = self._controller_handle()
            history: dict[str, Any] = handle.scaling_history.remote().result(timeout_s=CALL_TIMEOUT_S)
            return history
        except Exception as error:
            raise ClusterError(f"the fleet's controller does not answer ({type(error).__name__})") from error

    def end_unplaced(self) -> None:
        """End replicas that Serve stops and that never had a place: it would wait for each of them."""
        from longboat.cluster.fleet.unplaced import end_unplaced

        end_unplaced(self.apps.all())

    def end_nodes(self) -> None:
        """Have the controller end gateways, zygotes and daemons.

        Raises ClusterError when it does not.
        """
        try:
            self._controller_handle().end_nodes.remote().result(timeout_s=30.0)
        except Exception as error:
            raise ClusterError(f"the controller did not shut the nodes down ({type(error).__name__})") from error

    def need_no_nodes(self) -> str:
        """Ask Ray's autoscaler for nothing any more, without a controller; returns why that failed, empty otherwise."""
        from longboat.cluster.ray.autoscaler import ask_for_nodes

        try:
            ask_for_nodes((), ())
        except Exception as error:  # what Ray raises here depends on its version, and the fleet ends anyway
            return f"{type(error).__name__}: {error}"
        return ""

    def end_daemons(self) -> tuple[str, ...]:
        """End gateways, zygotes and daemons without a controller; returns the nodes that did not confirm it."""
        daemons = {}
        for node in self.nodes():
            with suppress(ValueError):  # it has none
                daemons[node.node_id] = self._named_daemon(node.node_id)
        asked = {node_id: daemon.shutdown.remote() for node_id, daemon in daemons.items()}
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        silent = []
        for node_id, ref in asked.items():
            try:
                self._ray.get(ref, timeout=max(0.0, deadline_s - time.monotonic()))
            except self._ray.exceptions.RayError:
                silent.append(node_id)
            self._ray.kill(daemons[node_id])
        return tuple(silent)

    def _named_daemon(self, node_id: str) -> Any:
        return asked_within(partial(self._ray.get_actor, daemon_name(node_id), namespace=NAMESPACE))

    def inspect(self, node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        """Ask nodes what is on them (see ``preflight.inspect_node``)."""
        from longboat.cluster.preflight.on_nodes import inspect_nodes

        return inspect_nodes(node_ids, request)

    def ask_daemon(self, node_id: str, method: str, *args: object) -> Any:
        """Call the daemon of a node. Raises ClusterError when it has none or does not answer."""
        try:
            daemon = self._named_daemon(node_id)
            return self._ray.get(getattr(daemon, method).remote(*args), timeout=CALL_TIMEOUT_S)
        except (ValueError, self._ray.exceptions.RayError) as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ClusterError):
                raise cause from None
            raise ClusterError(f"node {node_id[:8]} does not answer: {type(error).__name__}") from error

    def _controller_handle(self) -> Any:
        if self._controller is None:
            from ray import serve

            logging.getLogger("ray.serve").setLevel(logging.ERROR)  # its import sets it to INFO, on stderr
            self._controller = asked_within(partial(serve.get_app_handle, CONTROLLER_APP))
        return self._controller
