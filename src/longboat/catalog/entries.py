"""The entries of the catalog's data files: one class per kind, strict about names and types.

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
    """The fields of every entry."""

    name: str
    aliases: tuple[str, ...] = ()  # further names that people write
    source: str
    checked: datetime.date
    confidence: Confidence = "medium"


class Accelerator(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card, a chip with unified memory, or a processor that computes.

    It has more than 12 fields because they are the columns of a data file.
    """

    vendor: Literal["nvidia", "amd", "intel", "apple", "cpu", "other"]
    kind: Literal["gpu", "soc", "cpu"] = "gpu"
    memory_mib: int  # as the driver reports (``nvidia-smi``), not as advertised
    usable_ratio: float = 1.0  # most of it that one process can have: below 1 where the system uses the same memory
    bandwidth_gb_s: float  # of the memory, 10^9 bytes a second
    tflops: dict[str, float] = {}  # dense, by dtype of the multiplication; of GeForce cards with fp32 accumulation
    # NVIDIA's number for what its kernels can use, times ten (89: 8.9); 0: unknown, or another vendor
    compute_capability: int = 0
    link: str = ""  # the vendor's own link between cards
    link_gb_s: float = 0.0  # both directions together; 0: no link
    pcie: str = ""  # generation and lanes (``4x16``); ``""``: no PCIe
    tdp_w: int = 0  # of the card
    wall_w: int = 0  # measured for a whole system while it decodes; 0: unknown
    price_usd: float = 0.0  # for one, at ``price_date``
    price_note: str = ""  # kind of price (``MSRP``, ``used``, ``street``)
    price_date: datetime.date | None = None
    rent_usd_per_hour: float = 0.0  # from a cloud, at ``price_date``

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
        """Return dense operations a second in ``dtype``, or in the fastest wider type that the hardware has.

        0 where the entry has no figure.
        """
        wider = {"fp4": ("fp4", "fp8", "int8", "bf16"), "fp8": ("fp8", "bf16"), "int8": ("int8", "bf16")}
        for candidate in (*wider.get(dtype, (dtype,)), "bf16", "fp16", "fp32"):
            if candidate in self.tflops:
                return self.tflops[candidate] * 1e12
        return 0.0


class Link(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network or a bus between accelerators."""

    kind: Literal["network", "bus"]
    bandwidth_gb_s: float  # one direction, 10^9 bytes a second, as specified
    achievable_ratio: float  # part of the bandwidth that is reached in practice
    latency_us: float  # time of a small all-reduce between two (alpha); half of it for a message one way
    shared: bool = True  # all accelerators of a node share it with those of other nodes (a network card)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bandwidth reached in practice, one direction."""
        return self.bandwidth_gb_s * self.achievable_ratio * GB

    @property
    def latency_s(self) -> float:
        return self.latency_us * 1e-6


class Engine(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The abilities of an engine."""

    version: str
    dtypes: tuple[str, ...]
    quantizations: tuple[str, ...]
    kv_dtypes: tuple[str, ...] = ("bf16", "fp16")
    parallelism: tuple[str, ...]  # of tensor, pipeline, data, expert, context
    multi_node: bool = False  # runs over several machines
    platforms: tuple[str, ...]
    uneven_pipeline: str = ""  # environment variable or flag that sets layers per stage; ``""``: none
    mixed_accelerators: bool = False
    default_memory_ratio: float = 0.0  # part of a card that it takes by default; 0: what it needs
    starts_here: bool = False  # whether this version of Longboat starts it; other engines are planned only


class Electricity(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of electricity for households or small businesses in a region."""

    usd_per_kwh: float
    date: datetime.date


class ApiPrice(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a hosted API."""

    provider: str
    model: str  # name in this catalog of the model that it serves, or of the nearest one
    usd_per_million_input: float
    usd_per_million_output: float
    date: datetime.date


class CloudPrice(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hourly price of a rented machine."""

    accelerator: str
    count: int
    usd_per_hour: float
    date: datetime.date


class ModelEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published model."""

    hub: str  # its name on huggingface.co
    published_params: int = 0  # as its publisher says; 0: not published
    published_active_params: int = 0  # as its publisher says; 0: not published
    published_with_vision: bool = False  # the published figure includes the vision tower
    variants: tuple[str, ...] = ()  # quantizations in which its files are published
    # fields of its config.json that define its shape; a repeating list is written as ``{ start = […], cycle = […], end
    # = […] }``, one item per layer, or ``{ runs = [[count, item], …] }``
    config: dict[str, object]
    vision: dict[str, object] = {}  # fields of its ``vision_config``


class CatalogFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One data file; the package's and users' files have the same form."""

    accelerator: tuple[Accelerator, ...] = ()
    link: tuple[Link, ...] = ()
    engine: tuple[Engine, ...] = ()
    electricity: tuple[Electricity, ...] = ()
    api: tuple[ApiPrice, ...] = ()
    cloud: tuple[CloudPrice, ...] = ()
    model: tuple[ModelEntry, ...] = ()
