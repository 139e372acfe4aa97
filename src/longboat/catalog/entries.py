"""What the catalog's data files hold: one class an entry, strict about names and types.

Every entry says where its numbers come from (``source``), when that was looked at (``checked``), and how sure it is
(``confidence``: high for measured or the vendor's own figure that was compared, medium for a vendor's figure as
generally known, low for a guess).
"""

from __future__ import annotations

import datetime
from typing import Literal

import msgspec

__all__ = (
    "Accelerator",
    "ApiPrice",
    "CatalogFile",
    "CloudPrice",
    "Electricity",
    "Engine",
    "Entry",
    "Link",
    "ModelEntry",
)

Confidence = Literal["high", "medium", "low"]
MIB, GB = 1024**2, 10**9


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every entry has. aliases: further names that people write."""

    name: str
    aliases: tuple[str, ...] = ()
    source: str
    checked: datetime.date
    confidence: Confidence = "medium"


class Accelerator(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card, a chip with unified memory, or a processor that computes.

    memory_mib: what the driver reports (``nvidia-smi``), not what the box says
    usable_ratio: share of it that one process can have, at most: below 1 where the system uses the same memory
    bandwidth_gb_s: of the memory, 10^9 bytes a second
    tflops: dense, by dtype of the multiplication; of GeForce cards with fp32 accumulation
    compute_capability: NVIDIA's number for what its kernels can use, times ten (89: 8.9); 0: unknown, or another vendor
    link, link_gb_s: the vendor's own link between cards, both directions together; 0 for none
    pcie: generation and lanes (``4x16``); ``""`` where there is none
    tdp_w: of the card; wall_w: of a whole system while it decodes, where somebody measured it; 0: unknown
    price_usd: for one, as ``price_note`` says (``MSRP``, ``used``, ``street``), at ``price_date``
    rent_usd_per_hour: from a cloud, at ``price_date``
    """

    vendor: Literal["nvidia", "amd", "intel", "apple", "cpu", "other"]
    kind: Literal["gpu", "soc", "cpu"] = "gpu"
    memory_mib: int
    usable_ratio: float = 1.0
    bandwidth_gb_s: float
    tflops: dict[str, float] = {}
    compute_capability: int = 0
    link: str = ""
    link_gb_s: float = 0.0
    pcie: str = ""
    tdp_w: int = 0
    wall_w: int = 0
    price_usd: float = 0.0
    price_note: str = ""
    price_date: datetime.date | None = None
    rent_usd_per_hour: float = 0.0

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    @property
    def usable_bytes(self) -> int:
        return int(self.memory_bytes * self.usable_ratio)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.bandwidth_gb_s * GB

    def flops(self, dtype: str) -> float:
        """Dense operations a second in ``dtype``, or in the fastest wider type that the hardware has.

        0 where the entry has no figure.
        """
        wider = {"fp4": ("fp4", "fp8", "int8", "bf16"), "fp8": ("fp8", "bf16"), "int8": ("int8", "bf16")}
        for candidate in (*wider.get(dtype, (dtype,)), "bf16", "fp16", "fp32"):
            if candidate in self.tflops:
                return self.tflops[candidate] * 1e12
        return 0.0


class Link(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network or a bus between accelerators.

    bandwidth_gb_s: one direction, 10^9 bytes a second, as specified; achievable_ratio: share of it that is reached
    latency_us: time of a small all-reduce between two (alpha); half of it for a message one way
    shared: all accelerators of a node share it with those of other nodes (a network card)
    """

    kind: Literal["network", "bus"]
    bandwidth_gb_s: float
    achievable_ratio: float
    latency_us: float
    shared: bool = True

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """What is reached, one direction."""
        return self.bandwidth_gb_s * self.achievable_ratio * GB

    @property
    def latency_s(self) -> float:
        return self.latency_us * 1e-6


class Engine(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine can do.

    parallelism: of tensor, pipeline, data, expert, context; multi_node: over several machines
    uneven_pipeline: environment variable or flag that takes layers per stage; ``""`` for none
    default_memory_ratio: share of a card that it takes unless told otherwise; 0: what it needs
    starts_here: whether this version of Longboat launches it; others are planned only
    """

    version: str
    dtypes: tuple[str, ...]
    quantizations: tuple[str, ...]
    kv_dtypes: tuple[str, ...] = ("bf16", "fp16")
    parallelism: tuple[str, ...]
    multi_node: bool = False
    platforms: tuple[str, ...]
    uneven_pipeline: str = ""
    mixed_accelerators: bool = False
    default_memory_ratio: float = 0.0
    starts_here: bool = False


class Electricity(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of electricity for households or small businesses in a region."""

    usd_per_kwh: float
    date: datetime.date


class ApiPrice(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a hosted API. model: name in this catalog that it serves, or comes nearest to."""

    provider: str
    model: str
    usd_per_million_input: float
    usd_per_million_output: float
    date: datetime.date


class CloudPrice(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a rented machine an hour."""

    accelerator: str
    count: int
    usd_per_hour: float
    date: datetime.date


class ModelEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published model.

    hub: its name on huggingface.co
    published_params, published_active_params: as its publisher says, 0 where it does not
    published_with_vision: the published figure counts the vision tower
    variants: quantizations in which files of it can be had
    config: fields of its config.json that tell its shape; lists that repeat are written as
        ``{ start = […], cycle = […], end = […] }``, one item a layer, or ``{ runs = [[count, item], …] }``
    vision: the same of its ``vision_config``
    """

    hub: str
    published_params: int = 0
    published_active_params: int = 0
    published_with_vision: bool = False
    variants: tuple[str, ...] = ()
    config: dict[str, object]
    vision: dict[str, object] = {}


class CatalogFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file; ours and users' have the same form."""

    accelerator: tuple[Accelerator, ...] = ()
    link: tuple[Link, ...] = ()
    engine: tuple[Engine, ...] = ()
    electricity: tuple[Electricity, ...] = ()
    api: tuple[ApiPrice, ...] = ()
    cloud: tuple[CloudPrice, ...] = ()
    model: tuple[ModelEntry, ...] = ()
