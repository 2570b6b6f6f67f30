"""Two plans beside each other: what changed, by how much, and what of it is more than the band."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import hypot, sqrt
from statistics import stdev
from typing import Any, Literal

from servekit.config.compose import settle
from servekit.config.origins import Layered, leaves
from servekit.errors import ConfigError
from servekit.planner.diff.attribution import Attribution, Figures, attribute, causes, chosen
from servekit.planner.diff.dangers import notes
from servekit.planner.diff.shares import told
from servekit.planner.diff.sides import Side
from servekit.planner.metrics import Better, Family, Metric, metrics
from servekit.planner.outcome import Outcome, assess

Status = Literal["changed", "unchanged", "added", "removed", "invalid"]

RESOLUTION = 0.02
"""A modelled number does not tell apart what differs by less than this share of it."""

TIMES = ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms")

ROUNDING = 0.001
"""Nor an exact one what differs by less than this share: a block more or less."""

MODEL_OF: dict[Family, tuple[str, ...]] = {
    "memory": ("hardware", "model.shape", "model.dtype", "quantization", "parallelism"),
    "speed": (
        *("hardware", "model.shape", "model.dtype", "quantization", "parallelism"),
        "speculative",
    ),
    "price": (),
}
"""Keys that choose the part of the model a number comes from, so that its error changes too."""

NO_MODEL = {"hardware.usd_per_hour", "hardware.name", "hardware.device_names"}
"""Keys of those groups that only name things or are prices."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of the resolved configuration that is another one now; null also where none is.

    `cause` is what it belongs to in `Change.by`; None for a value that follows by a rule.
    """

    key: str
    before: Any
    after: Any
    origin: str
    cause: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One metric before and after; `band` is the half-width around `delta`, see `band_of`."""

    name: str
    before: float | None
    after: float | None
    band: float
    unit: str
    better: Better | None
    by: Mapping[str, Fraction]

    @property
    def delta(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def significant(self) -> bool:
        """Larger than its band; a value that appears or vanishes is."""
        if self.delta is None:
            return self.before is not self.after
        return abs(self.delta) > self.band

    @property
    def worse(self) -> bool:
        """Significantly; of what is neither better nor worse, nothing is."""
        if not self.significant or self.better is None or self.before is None:
            return False
        return self.delta is None or (self.delta < 0) == (self.better == "higher")


@dataclass(frozen=True, slots=True)
class Pair:
    """One deployment on both sides; a side is None where there is no such recipe."""

    name: str
    before: Side | None
    after: Side | None
    leaves: tuple[Leaf, ...] = ()
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    because: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        if "invalid" in (side.verdict for side in (self.before, self.after) if side):
            return "invalid"
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "changed" if self.leaves else "unchanged"

    @property
    def verdicts(self) -> tuple[str | None, str | None]:
        return (
            None if self.before is None else self.before.verdict,
            None if self.after is None else self.after.verdict,
        )

    def change(self, name: str) -> Change:
        return next(change for change in self.changes if change.name == name)


def band_of(before: Metric, after: Metric, changed: Sequence[str]) -> float:
    """Half-width of the interval around the difference of two predictions.

    Where the same part of the model gives both, they err alike: the error of the difference is the
    relative band of it, the larger of the two. Where a key of `MODEL_OF` changed, the errors are
    taken as independent, and add as squares. What chance does to simulated times is added as
    squares too, see `chance_of`. Never less than what rounding or the model resolves.
    """
    if before.value is None or after.value is None:
        return 0.0
    size = max(abs(before.value), abs(after.value))
    if not (before.band or after.band):
        return ROUNDING * size
    apart = any(
        key == part or key.startswith(part + ".")
        for part in MODEL_OF[before.family]
        for key in changed
        if key not in NO_MODEL
    )
    if apart:
        model = hypot(before.band, after.band)
    else:
        relative = max(one.band / abs(one.value) for one in (before, after) if one.value)
        model = relative * abs(after.value - before.value)
    return max(hypot(model, chance_of(before, after, changed)), RESOLUTION * size)


def chance_of(before: Metric, after: Metric, changed: Sequence[str]) -> float:
    """Half-width of the interval, 95 %, around the difference of two simulated times.

    With the same workload and as many requests both sides served the same arrivals: luck that both
    had falls out, and the differences of each part of the two runs say how sure theirs is (common
    random numbers, paired). Else the two are independent.
    """
    same_traffic = not any(key.startswith("workload.") for key in changed)
    if same_traffic and before.runs == after.runs and before.parts and after.parts:
        return paired_half(before.parts, after.parts)
    return hypot(before.chance, after.chance)


def paired_half(before: Sequence[float | None], after: Sequence[float | None]) -> float:
    """Of the mean difference, part by part; 0 where they are the same in all."""
    from servekit.simulator.statistics import student

    pairs = zip(before, after, strict=True)
    deltas = [two - one for one, two in pairs if one is not None and two is not None]
    if len(deltas) < 2:
        return 0.0
    return student(len(deltas) - 1) * stdev(deltas) / sqrt(len(deltas))


def compare(name: str, before: Side | None, after: Side | None) -> Pair:
    """Where both are valid and differ, each effect has its causes; else what there is to say."""
    changed = list(_leaves(before, after))
    one, two = _on_one_basis(before, after)
    keys = [leaf.key for leaf in changed]
    shared = _attribution(before, after) if changed else None
    valid = all(side.plan for side in (before, after) if side)
    changes = [
        Change(
            name=key,
            before=one[key].value if one else None,
            after=two[key].value if two else None,
            band=band_of(one[key], two[key], keys) if one and two else 0.0,
            unit=metric.unit,
            better=metric.better,
            by=shared.by[key] if shared else {},
        )
        for key, metric in ((two or one or {}) if valid else {}).items()
    ]
    ends = one or {}, two or {}
    moved = {
        item.name: item.delta
        for item in changes
        if all(item.name in end and end[item.name].runs for end in ends)
    }
    verdicts = (before.verdict if before else None, after.verdict if after else None)
    found = told(shared, verdicts, moved)
    return Pair(
        name=name,
        before=before,
        after=after,
        leaves=tuple(_with_cause(leaf, shared) for leaf in changed),
        changes=tuple(replace(item, by=found.by.get(item.name, item.by)) for item in changes),
        notes=tuple(notes(before, after)),
        idle=found.idle,
        because=found.because,
    )


Metrics = dict[str, Metric]


def _on_one_basis(before: Side | None, after: Side | None) -> tuple[Metrics | None, Metrics | None]:
    """What a side was simulated for is compared with what the other was: if that was too long to
    simulate, both in closed forms.
    """
    plans = [side.plan if side else None for side in (before, after)]
    served = [plan for plan in plans if plan and plan.prediction and plan.prediction.stable]
    runs = {bool(plan.prediction and plan.prediction.sampled) for plan in served}
    one, two = (
        None if plan is None else comparable(assess(plan.config) if len(runs) > 1 else plan)
        for plan in plans
    )
    return one, two


def comparable(plan: Outcome) -> dict[str, Metric]:
    """Without times where more is asked for than can be served: then they say how many requests
    are let in at once, not how well those are served, and more seats would read as a loss.
    """
    found = metrics(plan)
    if plan.prediction is None or plan.prediction.stable:
        return found
    return {
        name: replace(metric, value=None, band=0.0) if name in TIMES else metric
        for name, metric in found.items()
    }


def _leaves(before: Side | None, after: Side | None) -> Iterator[Leaf]:
    """Of two valid configurations, what differs once everything is derived; by key."""
    if not (before and before.composed and after and after.composed):
        return
    old = dict(leaves(before.composed.config.model_dump(mode="json")))
    new = dict(leaves(after.composed.config.model_dump(mode="json")))
    for key in sorted({**old, **new}):
        if old.get(key) != new.get(key):
            origin = after.origin(key) if key in new else before.origin(key)
            yield Leaf(key, old.get(key), new.get(key), origin, None)


def _with_cause(leaf: Leaf, shared: Attribution | None) -> Leaf:
    cause = next(
        (
            cause.name
            for cause in (shared.causes if shared else ())
            if any(leaf.key == key or leaf.key.startswith(key + ".") for key in cause.keys)
        ),
        None,
    )
    return Leaf(leaf.key, leaf.before, leaf.after, leaf.origin, cause)


def _attribution(before: Side | None, after: Side | None) -> Attribution | None:
    if not (before and before.layered and before.plan and after and after.layered and after.plan):
        return None
    base, head = chosen(before.layered), chosen(after.layered)

    def file_name(path: str) -> str:
        return after.clean(before.clean(path))

    return attribute(base, head, causes(base, head, file_name), figures)


def figures(tree: Layered) -> Figures | None:
    """The plan of a mixture; None where the schema or a rule refuses it."""
    try:
        made = assess(settle(tree).config)
    except ConfigError:
        return None
    return Figures(made.verdict, {name: metric.value for name, metric in comparable(made).items()})
