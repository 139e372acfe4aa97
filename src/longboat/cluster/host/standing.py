"""What a machine is that was made a node, and how it comes back where it does not run: judged by plain facts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longboat.cluster.host.adopted import ray_here
from longboat.cluster.host.record import ClusterRecord, load_record
from longboat.processes import boot_id

__all__ = ("Facts", "Standing", "standing", "standing_here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What can be seen of a node on its machine."""

    runner: bool  # whether the process that keeps the node lives
    ray: bool  # whether Ray's processes do
    same_boot: bool  # whether the machine has not been restarted since


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node's state in words."""

    record: ClusterRecord
    runs: bool  # whether commands can use the cluster through this node
    trouble: str = ""  # what is wrong; empty: nothing is
    hint: str = ""  # how it comes back

    @property
    def what(self) -> str:
        """What the machine is, with what is wrong."""
        return f"this machine is {_role(self.record)}" + (f", {self.trouble}" if self.trouble else "")


def standing(record: ClusterRecord, facts: Facts) -> Standing:
    """Judge a node by its record and by what can be seen of it."""
    if facts.runner:
        trouble, hint = _kept(record, facts)
        is_begun = record.phase in ("starting", "rejoining")  # Ray's processes are there before they answer
        runs = not trouble or (facts.ray and not is_begun)
        return Standing(record=record, runs=runs, trouble=trouble, hint=hint)
    if facts.ray and not record.is_ended:
        hint = "longboat node start has another process watch over it; nothing is interrupted"
        return Standing(record=record, runs=True, trouble="which runs, but the process that keeps it ended", hint=hint)
    ends = "longboat down" if record.started_by_up else "longboat node stop"
    hint = f"longboat node start brings it back as it was; {ends} ends it for good"
    return Standing(record=record, runs=False, trouble=f"but it does not run: {_why(record, facts)}", hint=hint)


def _kept(record: ClusterRecord, facts: Facts) -> tuple[str, str]:
    why = f" ({record.detail})" if record.detail else ""
    if record.phase == "up":
        return ("", "") if facts.ray else ("which is being started again", "it comes back by itself within seconds")
    if record.phase == "rejoining":
        waits = "it comes back by itself" + ("" if record.role == "head" else " when its head can be reached")
        return f"which is being started again{why}", waits
    if record.phase == "starting":
        return f"which is starting{why}", "it will be up within seconds"
    return f"which is {record.phase}{why}", "try again in a moment"


def _why(record: ClusterRecord, facts: Facts) -> str:
    if record.phase == "stopped":
        return record.detail or "longboat node stop ended it"
    if not facts.same_boot:
        return "the machine was restarted"
    if record.phase == "failed":
        return record.detail or "it did not start"
    return "its processes were ended"


def _role(record: ClusterRecord) -> str:
    if record.started_by_up:
        return "the local cluster that longboat up started"
    if record.role == "head":
        return f"the head of the cluster at {record.gcs_address}"
    return f"a node of the cluster at {record.gcs_address}"


def standing_here(run: Path) -> Standing | None:
    """Look at this machine; None where it was never made a node."""
    record = load_record(run)
    if record is None:
        return None
    kept = record.is_kept
    ray = (kept and record.phase == "up") or ray_here(record) is not None
    return standing(record, Facts(runner=kept, ray=ray, same_boot=record.boot in ("", boot_id())))
