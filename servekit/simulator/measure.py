"""One run in numbers: each over all of it that counts, and over each of ten batches of that."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from servekit.config.targets import SloConfig
from servekit.simulator.columns import FOUND
from servekit.simulator.record import End, Run, Served
from servekit.simulator.samples import PERCENTILES, Sample, latency, rate, sample, share
from servekit.simulator.slices import Slice, edges, slices
from servekit.simulator.statistics import (
    BATCHES,
    growth,
    percentile,
    warm_up,
    weighted_percentiles,
)

OBSERVATIONS = 400
"""Of how full the system is, evenly over the arrivals, from which the warm-up is told."""
TIMES: dict[str, Callable[[Served], float | None]] = {
    "ttft": lambda one: one.ttft_s,
    "tpot": lambda one: one.tpot_s,
    "e2e": lambda one: one.e2e_s,
    "queue": lambda one: one.queue_s,
}
"""Of a request, seconds; None: it has none."""


@dataclass(slots=True)
class Measured:
    """`samples` are named as the attributes of a Report, those within a Latency with a dot."""

    start: float
    """Where the warm-up ends."""
    end: float
    """Where the last request comes; rates are of the time between the two."""
    samples: dict[str, Sample] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Of each latency, how many."""
    slope: tuple[float, float] = (math.nan, math.nan)
    """Of the number that waits, a second, and its standard error."""
    promised: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each target, how many it is for, and how many of them were late."""
    counted: list[Served] = field(default_factory=list)
    """Those that came in that time."""


def measure(run: Run, since: float = 0.0) -> Measured:
    """Of what came when the warm-up was over, and not before `since`."""
    start, end = window(run)
    start = max(start, since)
    counted = [one for one in run.served if start <= one.at <= end]
    measured = Measured(start, end, counted=counted)
    _latencies(run, measured)
    _rates(run, measured)
    _steps(run, measured)
    _requests(run, measured)
    _lookups(run, measured)
    return measured


def window(run: Run) -> tuple[float, float]:
    """From the end of the warm-up to the last arrival.

    Where all come at once it is a job and no traffic: nothing is warm-up, and all of it counts.
    Half of the requests count whenever they came: after a burst most of the time may be warm-up to
    which nearly all of them belong.
    """
    last = max((one.at for one in run.served), default=0.0)
    if last == min((one.at for one in run.served), default=0.0):
        return 0.0, run.seconds
    width = last / OBSERVATIONS
    present = [0.0] * OBSERVATIONS
    for copy in run.copies:
        at = copy.steps.at
        for index in range(OBSERVATIONS):
            place = bisect_left(at, (index + 1) * width) - 1
            if place >= 0 and at[place] >= index * width:
                present[index] += copy.steps.running[place] + copy.steps.waiting[place]
    middle = sorted(one.at for one in run.served)[len(run.served) // 2]
    return min(warm_up(present) * width, middle), last


def is_good(one: Served, slo: SloConfig) -> bool:
    """It has its answer, within the targets there are; nobody waits for class batch."""
    if one.end != "finished":
        return False
    if one.slo_class == "batch":
        return True
    return _within(one.ttft_s, slo.ttft_ms) and _within(one.tpot_s, slo.tpot_ms)


def _within(seconds: float | None, target_ms: float | None) -> bool:
    return target_ms is None or seconds is None or seconds * 1000 <= target_ms


def _latencies(run: Run, measured: Measured) -> None:
    for name, time_of in TIMES.items():
        values = [time for one in measured.counted if (time := time_of(one)) is not None]
        measured.seen[name] = len(values)
        for key, found in latency(values).items():
            measured.samples[f"{name}.{key}"] = found
    slo = run.config.slo
    for name, target_ms in (("ttft", slo.ttft_ms), ("tpot", slo.tpot_ms)):
        if target_ms is not None:
            _target(name, target_ms / 1000, slo.percentile / 100, measured)
    _gaps(run, measured)


def _target(name: str, target_s: float, share: float, measured: Measured) -> None:
    """Of class interactive. Who left has waited for a first token as long as that took."""
    values = []
    for one in measured.counted:
        time = TIMES[name](one)
        if name == "ttft" and one.end == "left" and one.finished_at is not None:
            time = one.finished_at - one.at
        if time is not None and one.slo_class == "interactive":
            values.append(time)
    measured.samples[f"target.{name}"] = sample(values, partial(_unsorted, share=share))
    measured.promised[name] = len(values), sum(value > target_s for value in values)


def _unsorted(values: Sequence[float], share: float) -> float:
    return percentile(sorted(values), share)


def _gaps(run: Run, measured: Measured) -> None:
    """Times between tokens, those of all copies together."""
    limits = edges(measured.start, measured.end, BATCHES)
    parts: list[tuple[list[float], list[int]]] = [([], []) for _ in range(BATCHES)]
    for copy in run.copies:
        gaps = copy.gaps
        places = [bisect_left(gaps.at, limit) for limit in limits]
        for part, low, high in zip(parts, places, places[1:], strict=False):
            part[0].extend(gaps.seconds[low:high])
            part[1].extend(gaps.count[low:high])
    everything = ([s for part in parts for s in part[0]], [n for part in parts for n in part[1]])
    found: dict[str, list[float]] = {key: [] for key in ("mean", *PERCENTILES)}
    for seconds, counts in (everything, *parts):
        count = sum(counts)
        total = math.fsum(map(float.__mul__, seconds, map(float, counts)))
        found["mean"].append(total / count if count else math.nan)
        points = weighted_percentiles(seconds, counts, list(PERCENTILES.values()))
        for key, point in zip(PERCENTILES, points, strict=True):
            found[key].append(point)
    for key, (whole, *batches) in found.items():
        measured.samples[f"itl.{key}"] = Sample(whole, batches)
    measured.seen["itl"] = sum(everything[1])


def _rates(run: Run, measured: Measured) -> None:
    """What came, and what was served, a second."""
    start, end = measured.start, measured.end
    gone: dict[End, list[Served]] = {"finished": [], "refused": [], "left": [], "unfinished": []}
    for one in run.served:
        if one.finished_at is not None and start <= one.finished_at <= end:
            gone[one.end].append(one)
    ended = gone["finished"]
    good = [one for one in ended if is_good(one, run.config.slo)]
    came = [(one.at, 1) for one in measured.counted]
    each = {
        "offered_per_s": came,
        "served_per_s": [(one.finished_at or 0.0, 1) for one in ended],
        "total_tokens_per_s": [
            (one.finished_at or 0.0, one.prompt_tokens + one.output_tokens) for one in ended
        ],
        "goodput_per_s": [(one.finished_at or 0.0, 1) for one in good],
        "refused_per_s": [(one.finished_at or 0.0, 1) for one in gone["refused"]],
        "left_per_s": [(one.finished_at or 0.0, 1) for one in gone["left"]],
    }
    for key, events in each.items():
        measured.samples[key] = rate(events, start, end)


def _steps(run: Run, measured: Measured) -> None:
    """What steps were, on average, and how full the system was."""
    parts = slices(run, edges(measured.start, measured.end, BATCHES))
    whole = sum(parts[1:], parts[0]) if parts else Slice()
    for key, number_of in STEPS.items():
        measured.samples[key] = Sample(number_of(whole), [number_of(part) for part in parts])
    width = (measured.end - measured.start) / BATCHES
    times = [index * width for index in range(len(parts))]
    measured.slope = growth(times, [part.waiting_s / max(part.wall_s, 1e-9) for part in parts])


STEPS: dict[str, Callable[[Slice], float]] = {
    "output_tokens_per_s": lambda part: share(part.output_tokens, part.wall_s),
    "kv_mean_share": lambda part: share(part.blocks_s, part.block_capacity_s),
    "running": lambda part: share(part.running_s, part.wall_s),
    "waiting": lambda part: share(part.waiting_s, part.wall_s),
    "batch_tokens": lambda part: share(part.decodes + part.prompt_tokens, part.steps),
    "batch_decodes": lambda part: share(part.decodes, part.steps),
    "step_s": lambda part: share(part.steps_s, part.steps),
    "busy_share": lambda part: share(part.busy_s, part.copy_s),
    "empty_seat_share": lambda part: 1 - share(part.running_s, part.seats_s),
    "idle_seat_share": lambda part: share(part.idle_seats_s, part.seats_s),
    "preemptions": lambda part: float(part.preempted),
}


def _requests(run: Run, measured: Measured) -> None:
    """Shares of those that came in the time that counts."""
    slo = run.config.slo
    good = [float(is_good(one, slo)) for one in measured.counted]
    taken = [float(is_good(one, slo)) for one in measured.counted if one.end != "refused"]
    seated = [one for one in measured.counted if one.admitted_at is not None]
    preempted = [float(one.preemptions > 0) for one in seated]
    measured.samples["goodput_share"] = sample(good)
    ends: tuple[End, End] = ("refused", "left")
    for end in ends:
        went = [float(one.end == end) for one in measured.counted]
        measured.samples[f"{end}_share"] = sample(went)
    measured.samples["attained_share"] = sample(taken)
    measured.samples["preempted_share"] = sample(preempted)


def _lookups(run: Run, measured: Measured) -> None:
    """Shares of the prompt tokens of those seated in the time that counts, by what the prefix cache
    said of them; they add up to 1.
    """
    limits = edges(measured.start, measured.end, BATCHES)
    parts: list[Counter[str]] = []
    for low, high in pairwise(limits):
        parts.append(Counter())
        for copy in run.copies:
            parts[-1].update(copy.lookups.between(low, high, last=high == limits[-1]))
    whole = sum(parts, Counter[str]())
    for name in (FOUND, *{reason: 0 for copy in run.copies for reason in copy.lookups.reasons}):
        measured.samples["hit_share" if name == FOUND else f"miss.{name}"] = Sample(
            share(whole[name], whole.total()), [share(part[name], part.total()) for part in parts]
        )
