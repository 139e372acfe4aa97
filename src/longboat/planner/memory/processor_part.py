"""Some CPUs of a processor, as a rank on a node without accelerators has them, as an entry of the catalog."""

from __future__ import annotations

import re

import msgspec

from longboat.catalog.entries import Accelerator
from longboat.catalog.library import Library

__all__ = ("USUAL_PROCESSOR", "USUAL_PROCESSOR_CPUS", "find_hardware", "processor_part")

USUAL_PROCESSOR = "Desktop 2ch DDR5-5600"
USUAL_PROCESSOR_CPUS = 16
PART = re.compile(r"(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))? CPUs? of (.+)")


def processor_part(
    library: Library, num_cpus: float, *, of: Accelerator | None = None, all_cpus: float = 0.0
) -> Accelerator:
    """Return ``2 CPUs of Desktop 2ch DDR5-5600``: their part of its operations and of its memory's speed.

    of: the node's processor, with ``all_cpus``; None: not known: a common one is assumed; measured rows put it right
    """
    if of is None:
        return _part(library.accelerators.find(USUAL_PROCESSOR), num_cpus)
    return _part(of, num_cpus, all_cpus)


def find_hardware(name: str, library: Library) -> Accelerator:
    """Return the accelerator, or part of a processor, that a measured row names. Raises as the catalog does."""
    found = PART.fullmatch(name.strip())
    if found is None:
        return library.accelerators.find(name)
    return _part(library.accelerators.find(found[3]), float(found[1]), float(found[2] or 0))


def _part(entry: Accelerator, num_cpus: float, all_cpus: float = 0.0) -> Accelerator:
    share = min(1.0, num_cpus / (all_cpus or USUAL_PROCESSOR_CPUS))
    count = f"{num_cpus:g}/{all_cpus:g} CPUs" if all_cpus else f"{num_cpus:g} CPU{'' if num_cpus == 1 else 's'}"
    return msgspec.structs.replace(
        entry,
        name=f"{count} of {entry.name}",
        tflops={dtype: value * share for dtype, value in entry.tflops.items()},
        bandwidth_gb_s=entry.bandwidth_gb_s * share,
    )
