"""Seconds that ranks need to exchange activations.

Where an all-reduce was measured on a link it is read from the table of the card; elsewhere it is
`latency + 2 (t - 1) / t x bytes / bandwidth`, the cost of a ring.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from servekit.config.schema import Config, HardwareConfig
from servekit.spec.efficiency import Curve, Efficiency, at, curve, table

HOST_PATH_FLOOR_S = 40e-6
"""Of a general library's all-reduce, outside captured graphs or without peer-to-peer copies:
profiles of H100 show 35 to 40 us."""

HOP_S = 10e-6
"""Handing activations to the next pipeline stage, or to one peer, before the first byte."""

NETWORK_GB_S = 50.0
"""One direction, of one device to another machine: 400 Gb/s; a guess, no option says it."""

LINK_SHARE = 0.85
"""Of a link's bandwidth in one direction that large messages reach: 400 of 450 GB/s on NVLink."""

PCIE = "l40s"
"""The one table measured over PCI Express with and without a shared root, at 64 GB/s."""
PCIE_GB_S = 64.0


@dataclass(frozen=True, slots=True)
class Links:
    """How `tensor` ranks and pipeline stages exchange; numbers only."""

    reduce: Curve | None
    """all-reduce, seconds over bytes; None for one rank"""
    largest: float
    """bytes of the last point; more take in proportion"""
    scale: float
    floor_s: float
    hop_s: float
    byte_s: float
    """seconds a byte takes to a peer, one direction"""


NO_LINKS = Links(None, math.inf, 1.0, 0.0, 0.0, 0.0)
"""Exchanges that take no time: a single rank, and a lower bound."""


def links(config: Config) -> Links:
    """Of the tensor group; a group of more ranks than a machine has goes by the network."""
    hardware, ranks = config.hardware, config.parallelism.tensor
    across = ranks > hardware.devices_per_node
    one_way = NETWORK_GB_S if across else (hardware.link_gb_s or NETWORK_GB_S) / 2
    byte_s = 1 / (one_way * LINK_SHARE * 1e9)
    if ranks == 1:
        return Links(None, math.inf, 1.0, 0.0, HOP_S, byte_s)
    measured, scale = (None, 1.0) if across else _measured(hardware, ranks)
    slow = across or not hardware.p2p
    if measured is None:
        floor_s = HOST_PATH_FLOOR_S if slow else HOP_S
        measured = _ring(ranks, floor_s, byte_s)
    return Links(
        reduce=measured,
        largest=math.exp(measured.log_x[-1]),
        scale=scale,
        floor_s=HOST_PATH_FLOOR_S if slow else 0.0,
        hop_s=HOP_S,
        byte_s=byte_s,
    )


def _ring(ranks: int, floor_s: float, byte_s: float) -> Curve:
    share = 2 * (ranks - 1) / ranks * byte_s
    return curve([(size, floor_s + size * share) for size in (2.0**n for n in range(8, 31, 2))])


def _measured(hardware: HardwareConfig, ranks: int) -> tuple[Curve | None, float]:
    """The table nearest in ranks, and what its times are multiplied by here."""
    own = table(hardware.efficiency)
    if hardware.link == own.link:
        source: Efficiency = own
    elif hardware.link == "pcie":
        source = table(PCIE)
    else:
        return None, 1.0
    found = _nearest(source.all_reduce, ranks)
    if found is None:
        return None, 1.0
    slower = 1.0
    if source.name == PCIE and hardware.link_gb_s:
        slower = max(1.0, PCIE_GB_S / hardware.link_gb_s)
    return source.all_reduce[found], slower * _ring_share(ranks) / _ring_share(found)


def _ring_share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _nearest(tables: Mapping[int, Curve], ranks: int) -> int | None:
    """The table of most ranks up to these, else of the fewest above."""
    below = [count for count in tables if count <= ranks]
    return max(below) if below else min(tables, default=None)


def all_reduce_s(known: Links, size: float) -> float:
    """One all-reduce of that many bytes."""
    if known.reduce is None or size <= 0:
        return 0.0
    seconds = at(known.reduce, size) * max(1.0, size / known.largest) * known.scale
    return max(seconds, known.floor_s)


def send_s(known: Links, size: float) -> float:
    """That many bytes to one peer."""
    return known.hop_s + size * known.byte_s if size > 0 else 0.0
