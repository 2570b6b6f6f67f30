"""Measured efficiencies of cards: which part of the peak rates their kernels reach.

Each file of `efficiency/` is one table; its `source` and `standing` say, to its readers, where the
numbers come from and how sure they are. An efficiency is the
time at peak rates over the time taken, so it lies between 0 and 1.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from servekit.config.origins import LOADER
from servekit.errors import ConfigError

FOLDER = Path(__file__).parent / "efficiency"

Arithmetic = Literal["32bit", "16bit", "fp8", "fp8_block", "int8", "fp4", "weight_only"]
"""What a matrix product is computed in; weight_only: narrow weights, widened to 16 bits."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over another: straight between points where both are drawn as logarithms."""

    log_x: tuple[float, ...]
    log_y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrix products of one arithmetic, over m, the tokens of a step."""

    memory: Curve
    """of the bandwidth, where reading weights takes the time"""
    compute: Curve
    """of the peak rate, where arithmetic takes the time"""
    floor_s: float
    """the shortest that one launch takes, seconds"""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """One table."""

    cards: tuple[str, ...]
    """names of the hardware it was measured on"""
    band: float
    """half-width of the interval around times of dense models, relative"""
    gemm: Mapping[str, Gemm]
    experts: Mapping[str, Gemm]
    """products of routed experts, over the tokens of one expert"""
    decode: Curve
    """of the bandwidth, over the bytes of keys and values that one launch reads"""
    decode_narrow: Curve
    """the same for keys and values of 8 bits and less"""
    decode_floor_s: float
    prefill: Curve
    """of the 16-bit rate, over the length of a causal prompt"""
    link: str
    link_gb_s: float
    """of the cards it was measured on, both directions"""
    all_reduce: Mapping[int, Curve]
    """seconds over bytes, by ranks"""
    host_s: float
    """of a step: scheduling, sampling, launches that nothing hides"""
    host_layer_s: float


def curve(points: Sequence[Sequence[float]]) -> Curve:
    """Through points of rising x; level outside of them."""
    return Curve(
        log_x=tuple(math.log(x) for x, _ in points), log_y=tuple(math.log(y) for _, y in points)
    )


def at(known: Curve, x: float) -> float:
    """The value there, x above 0."""
    log_x, log_y = known.log_x, known.log_y
    if len(log_x) == 1:
        return math.exp(log_y[0])
    where = math.log(x)
    right = bisect_right(log_x, where)
    if right == 0:
        return math.exp(log_y[0])
    if right == len(log_x):
        return math.exp(log_y[-1])
    left = right - 1
    part = (where - log_x[left]) / (log_x[right] - log_x[left])
    return math.exp(log_y[left] + part * (log_y[right] - log_y[left]))


FULL = curve([[1, 1]])
IDEAL = Gemm(memory=FULL, compute=FULL, floor_s=0.0)


def gemm_of(known: Efficiency | None, arithmetic: Arithmetic) -> Gemm:
    """The products of one arithmetic; of 16 bits where it was not measured apart."""
    return IDEAL if known is None else known.gemm.get(arithmetic) or known.gemm["16bit"]


def experts_of(known: Efficiency | None, arithmetic: Arithmetic) -> Gemm:
    """The products of routed experts; as any other's where they were not measured apart."""
    found = known and known.experts.get(arithmetic)
    return found or gemm_of(known, arithmetic)


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


@lru_cache(maxsize=32)
def table(name: str) -> Efficiency:
    """The table of that name. Raises ConfigError where there is none."""
    file = FOLDER / f"{name}.yaml"
    if not file.is_file():
        raise ConfigError(
            f"hardware.efficiency={name} names no table of efficiencies; there are "
            f"{', '.join(names())}; take that of the most similar card"
        )
    return _read(yaml.load(file.read_text(encoding="utf-8"), LOADER))


def _read(tree: Mapping[str, Any]) -> Efficiency:
    attention, links, host = tree["attention"], tree["all_reduce"], tree["host"]
    return Efficiency(
        cards=tuple(tree["cards"]),
        band=tree["band"],
        gemm=_gemms(tree["gemm"]),
        experts=_gemms(tree["experts"]),
        decode=curve(attention["decode"]),
        decode_narrow=curve(attention["decode_narrow"]),
        decode_floor_s=attention["floor_us"] * 1e-6,
        prefill=curve(attention["prefill"]),
        link=links["link"],
        link_gb_s=links["link_gb_s"],
        # elements of 16 bits and microseconds in the file
        all_reduce={
            ranks: curve([(2 * elements, us * 1e-6) for elements, us in points])
            for ranks, points in links["us"].items()
        },
        host_s=host["step_ms"] * 1e-3,
        host_layer_s=host["layer_us"] * 1e-6,
    )


def _gemms(tree: Mapping[str, Any]) -> dict[str, Gemm]:
    return {
        arithmetic: Gemm(
            memory=curve(numbers["memory"]),
            compute=curve(numbers["compute"]),
            floor_s=numbers["floor_us"] * 1e-6,
        )
        for arithmetic, numbers in tree.items()
    }
