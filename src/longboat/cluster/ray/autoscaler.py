"""Ray's autoscaler: whether one runs, and what it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ("ask_for_nodes", "is_node_type")

STATUS_KEY = b"__autoscaling_status"
"""Where the monitor of a head writes what ``ray status`` prints."""
_NO_TYPE = re.compile(r"node_[0-9a-f]{20,}")


def ask_for_nodes(bundles: Sequence[Mapping[str, float]], labels: Sequence[Mapping[str, str]]) -> bool:
    """Ask for room for all these bundles together, those that have it included. Empty: nothing is needed any more.

    Returns whether an autoscaler runs; where none does, nothing is asked. The newest call in the cluster counts.
    Blocks. labels: of each bundle's node
    """
    from ray.autoscaler.sdk import request_resources

    if not any(is_node_type(name) for name in _node_types()):
        return False
    plain = [dict(bundle) for bundle in bundles]
    selectors = [dict(one) for one in labels]
    request_resources(bundles=plain, bundle_label_selectors=selectors if any(selectors) else None)
    return True


def is_node_type(name: str) -> bool:
    """Return whether this is a type of an autoscaler's configuration.

    Without a configuration, Ray's monitor gives each node a type of its own, made of the node's id.
    """
    return bool(name) and _NO_TYPE.fullmatch(name) is None


def _node_types() -> Iterable[str]:
    """Return the types of the nodes that are alive, as the autoscaler, or Ray's monitor alone, names them."""
    import ray
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental.internal_kv import _internal_kv_get

    if is_autoscaler_v2():
        from ray.autoscaler.v2.sdk import get_cluster_status

        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        return [node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)]
    written = _internal_kv_get(STATUS_KEY)
    report = (json.loads(written).get("autoscaler_report") if written else None) or {}
    return list((report.get("node_type_mapping") or {}).values())
