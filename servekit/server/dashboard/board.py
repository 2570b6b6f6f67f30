"""What the live page shows: a sample a second, for ten minutes, in memory that is bounded.

A sample is taken from numbers that are there anyway; nothing is done for each token.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

from servekit.server.running import Running
from servekit.telemetry.metrics import Metrics

GIB = 1 << 30
EVERY_S = 1.0
SAMPLES = 600
LATE = 30
"""Samples that an average is of: steps are few a second on a slow machine."""
MOST_SEATS = 64
"""Those that are drawn; more would not be told apart."""

PREFILL, DECODE, PREEMPTED = 1, 2, 3
STATES = 4
"""A seat is written down as STATES x the request's number + its state; 0: empty."""

SHOWN = (
    *("running", "waiting", "waiting_tokens", "kv_used", "kv_cached", "kv_free", "kv_capacity"),
    *("kv_fragmentation", "preemptions_total", "predicted_ttft_s"),
)
"""Of the engine's numbers, by the keys of the catalogue."""


def state_of(one: Running) -> int:
    """0: it waits for its first seat, or is over."""
    if one.answer.finished:
        return 0
    kinds = [event.kind for event in one.events if event.kind != "chunk"]
    if not kinds:
        return 0
    if kinds[-1] == "preempted":
        return PREEMPTED
    return PREFILL if one.first_at is None else DECODE


@dataclass(slots=True)
class SeatMap:
    """Each request keeps the lowest seat that was free when it was first seen to run."""

    seat_of: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: list(range(MOST_SEATS)))

    def __post_init__(self) -> None:
        heapify(self.free)

    def look(self, running: Iterable[Running]) -> list[int]:
        """Who sits where, up to the last seat that is taken."""
        states = {one.number: state for one in running if (state := state_of(one))}
        for number in [number for number in self.seat_of if number not in states]:
            heappush(self.free, self.seat_of.pop(number))
        for number in states:
            if number not in self.seat_of and self.free:
                self.seat_of[number] = heappop(self.free)
        row = [0] * (1 + max(self.seat_of.values(), default=-1))
        for number, seat in self.seat_of.items():
            row[seat] = STATES * number + states[number]
        return row


@dataclass(slots=True)
class Board:
    """The samples, oldest first. Its methods belong to the event loop's thread."""

    samples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    seats: SeatMap = field(default_factory=SeatMap)
    _next_at: float = 0.0
    _before: tuple[int, int, int, float] | None = None
    """Prompt tokens, decoded tokens and steps so far, and when that was."""

    def tick(self, metrics: Metrics, running: Iterable[Running]) -> None:
        """Takes a sample if one is due."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + EVERY_S
        readings = metrics.readings()
        sample: dict[str, Any] = {"at": round(time.time(), 3)}
        sample |= {key: readings.get(key) for key in SHOWN}
        sample |= self._rates(metrics, now)
        sample["seats"] = self.seats.look(running)
        self.samples.append(sample)

    def since(self, at: float) -> list[dict[str, Any]]:
        """The samples that are younger."""
        return [sample for sample in self.samples if sample["at"] > at]

    def output_per_s(self) -> float | None:
        """Of the latest half minute."""
        late = [sample["decode_per_s"] for sample in islice(reversed(self.samples), LATE)]
        return sum(late) / len(late) if late else None

    def _rates(self, metrics: Metrics, now: float) -> dict[str, float]:
        """Tokens and steps a second since the sample before, and milliseconds a step."""
        duration = metrics.step_duration
        prefill, decode = metrics.step_tokens["prefill"], metrics.step_tokens["decode"]
        steps, before = sum(duration.counts), self._before
        self._before = (prefill, decode, steps, now)
        if before is None:
            return {"prefill_per_s": 0.0, "decode_per_s": 0.0, "steps_per_s": 0.0}
        seconds = now - before[3]
        return {
            "prefill_per_s": round((prefill - before[0]) / seconds, 1),
            "decode_per_s": round((decode - before[1]) / seconds, 1),
            "steps_per_s": round((steps - before[2]) / seconds, 2),
        }


def latencies(metrics: Metrics) -> dict[str, Any]:
    """Of the latest answers, in milliseconds, with what is promised and planned."""
    level = metrics.level
    pairs = {
        "ttft": (level.ttft_s, level.promised.ttft_s, level.planned.ttft_s),
        "tpot": (level.tpot_s, level.promised.tpot_s, level.planned.tpot_s),
    }
    return {
        name: {
            "ms": [round(1000 * value, 3) for value in values],
            "target_ms": None if target is None else 1000 * target,
            "planned_ms": None if planned is None else 1000 * planned,
        }
        for name, (values, target, planned) in pairs.items()
    }


def beside(
    plan: Mapping[str, Any],
    measured: Mapping[str, Any],
    metrics: Metrics,
    tokens_per_s: float | None,
) -> list[dict[str, Any]]:
    """Rows of what was planned and what is measured; null where there is no such number."""
    weights, level = measured.get("weights_bytes"), metrics.level
    ttft, tpot = level.ttft(), level.tpot()
    capacity = measured.get("capacity_tokens")
    full = _at(plan, "latency", "output_tokens_per_s")
    rows: list[tuple[str, str, Any, Any]] = [
        ("weights", "GiB", _at(plan, "memory", "weights_gib"), weights and weights / GIB),
        ("KV capacity", "tokens", _at(plan, "kv", "capacity_tokens"), capacity),
        ("TTFT", "ms", _ms(ttft.get("planned")), _ms(ttft.get("measured"))),
        ("TPOT", "ms", _ms(tpot.get("planned")), _ms(tpot.get("measured"))),
        ("output at full load, and of late", "tokens/s", full, tokens_per_s),
    ]
    names = ("name", "unit", "planned", "measured")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _at(tree: Mapping[str, Any], *path: str) -> Any:
    found: Any = tree
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
