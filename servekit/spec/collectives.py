"""Seconds that ranks need to exchange activations.

Where an all-reduce was measured on a link it is read from the table of the card; elsewhere it is
`latency + 2 (t - 1) / t x bytes / bandwidth`, the cost of a ring.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from servekit.config.schema import Config, HardwareConfig
from servekit.spec.efficiency import Curve, at, curve, table

HOST_PATH_FLOOR_S = 40e-6
"""Of a general library's all-reduce, outside captured graphs or without peer-to-peer copies:
profiles of H100 show 35 to 40 us."""

HOP_S = 10e-6
"""Handing activations to the next pipeline stage, or to one peer, before the first byte."""

NETWORK_GB_S = 50.0
"""One direction, of one device to another machine: 400 Gb/s; a guess, no option says it."""

LINK_SHARE = 0.85
"""Of a link's bandwidth in one direction that large messages reach: 400 of 450 GB/s on NVLink."""

PCIE = {64.0: "l40s", 128.0: "rtx_pro_6000"}
"""Tables measured over PCI Express, by its speed."""


@dataclass(frozen=True, slots=True)
class Links:
    """How `tensor` ranks and pipeline stages exchange; numbers only."""

    reduce: Curve | None
    """all-reduce, seconds over bytes; None for one rank"""
    largest: float
    """bytes of the last point; more take in proportion"""
    floor_s: float
    hop_s: float
    byte_s: float
    """seconds a byte takes to a peer, one direction"""


NO_LINKS = Links(None, math.inf, 0.0, 0.0, 0.0)
"""Exchanges that take no time: a single rank, and a lower bound."""


def links(config: Config) -> Links:
    """Of the tensor group; a group of more ranks than a machine has goes by the network."""
    hardware, ranks = config.hardware, config.parallelism.tensor
    across = ranks > hardware.devices_per_node
    one_way = NETWORK_GB_S if across else (hardware.link_gb_s or NETWORK_GB_S) / 2
    byte_s = 1 / (one_way * LINK_SHARE * 1e9)
    if ranks == 1:
        return Links(None, math.inf, 0.0, HOP_S, byte_s)
    measured = None if across else _measured(hardware, ranks)
    slow = across or not hardware.p2p
    if measured is None:
        floor_s = HOST_PATH_FLOOR_S if slow else HOP_S
        measured = _ring(ranks, floor_s, byte_s)
    return Links(
        reduce=measured,
        largest=math.exp(measured.log_x[-1]),
        floor_s=HOST_PATH_FLOOR_S if slow else 0.0,
        hop_s=HOP_S,
        byte_s=byte_s,
    )


def _ring(ranks: int, floor_s: float, byte_s: float) -> Curve:
    share = 2 * (ranks - 1) / ranks * byte_s
    return curve([(size, floor_s + size * share) for size in (2.0**n for n in range(8, 31, 2))])


def _measured(hardware: HardwareConfig, ranks: int) -> Curve | None:
    """The table nearest in ranks on a link of this kind, with its bytes slowed to this link.

    Fewer ranks than were measured move less, more of them move more, as in a ring.
    """
    source = table(hardware.efficiency)
    if hardware.link != source.link:
        if hardware.link != "pcie":
            return None
        speed = hardware.link_gb_s or min(PCIE)
        source = table(PCIE[max((known for known in PCIE if known <= speed), default=min(PCIE))])
    found = _nearest(source.all_reduce, ranks)
    if found is None:
        return None
    known = source.all_reduce[found]
    slower = max(1.0, source.link_gb_s / (hardware.link_gb_s or source.link_gb_s))
    slower *= _ring_share(ranks) / _ring_share(found)
    first = math.exp(known.log_y[0])
    slowed = [first + (math.exp(seconds) - first) * slower for seconds in known.log_y]
    return Curve(log_x=known.log_x, log_y=tuple(math.log(seconds) for seconds in slowed))


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
    seconds = at(known.reduce, size) * max(1.0, size / known.largest)
    return max(seconds, known.floor_s)


def send_s(known: Links, size: float) -> float:
    """That many bytes to one peer."""
    return known.hop_s + size * known.byte_s if size > 0 else 0.0
