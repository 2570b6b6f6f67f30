"""The words and numbers that the page and the markdown of `servekit diff` share."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from servekit.config.problems import shown
from servekit.planner.diff.difference import ROUNDING, Change, Leaf, Pair
from servekit.planner.diff.sides import Side
from servekit.planner.metrics import LABELS

VERDICTS = {
    "ok": "ok",
    "unsure": "unsure",
    "misses_slo": "misses its SLO",
    "impossible": "impossible",
    "does_not_fit": "does not fit",
    "invalid": "not valid",
}

SHARED_OUT = (
    *("weights_gib", "capacity_tokens", "max_concurrency", "ttft_p95_ms", "tpot_p95_ms"),
    *("output_tokens_per_s", "goodput_per_s", "usd_per_hour", "usd_per_million_output_tokens"),
)
"""Metrics whose change is shown by cause; JSON has all of them."""

SMALLEST_SHARE = 0.0005
"""Of what there was; less is not said."""

FEW = 3
"""Keys of one cause that are listed; of more, the group is named and they are counted."""

MOST_PROBLEMS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One metric in a table. `judgement` is one of same, better, worse, changed, within band."""

    label: str
    before: str
    after: str
    change: str
    band: str
    judgement: str


def label_of(side: str) -> str:
    """Words as they were given, or that there were none."""
    return side.strip() or "(no words)"


def headline(pair: Pair) -> str:
    """What becomes of the verdict, in a phrase."""
    before, after = (VERDICTS[verdict] if verdict else None for verdict in pair.verdicts)
    if before is None:
        return f"new, {after}"
    if after is None:
        return f"removed, was {before}"
    return f"{before} -> {after}" if before != after else f"{after}, as before"


def verdict_now(pair: Pair) -> str:
    """In words, of a deployment that is still there."""
    return VERDICTS[pair.verdicts[1] or "invalid"]


def reasons(pair: Pair) -> Iterator[str]:
    """Why the verdict is what it is: causes, memory, targets, problems of a side."""
    if pair.because:
        yield f"because of {', '.join(pair.because)}"
    for side in (pair.before, pair.after):
        if side and side.problems:
            yield from _problems(side)
    yield from _refusal(pair)
    yield from _targets(pair)


def _refusal(pair: Pair) -> Iterator[str]:
    """Memory, hardware, and a queue without end; targets have lines of their own."""
    plan = pair.after.plan if pair.after else None
    if plan is None:
        return
    if plan.ledger.problem:
        yield plan.ledger.problem
    yield from plan.refusals
    if plan.prediction and not plan.prediction.stable:
        yield (
            f"{plan.prediction.requests_per_s:.4g} requests a second are more than it serves: the "
            "queue grows without end, and times are not compared"
        )


def _problems(side: Side) -> Iterator[str]:
    yield f"not valid at {label_of(side.source.label)}:"
    lines = [line for problem in side.problems for line in problem.splitlines()]
    yield from (f"  {line}" for line in lines[:MOST_PROBLEMS])
    if len(lines) > MOST_PROBLEMS:
        yield f"  and {len(lines) - MOST_PROBLEMS} lines more, in --json"


def _targets(pair: Pair) -> Iterator[str]:
    """Lines of the SLO that are judged otherwise than before, or are missed in something new."""
    old = _slo(pair.before)
    for name, (target, predicted, verdict) in _slo(pair.after).items():
        was = old[name][2] if name in old else "no target"
        if verdict != was and (name in old or pair.before is None or verdict != "meets"):
            said = verdict if pair.before is None else f"{was} -> {verdict}"
            value = "" if predicted is None else f", predicted {number(predicted)}"
            yield f"slo.{name}={number(target)}: {said}{value}"


def _slo(side: Side | None) -> dict[str, tuple[float, float | None, str]]:
    lines = side.plan.slo if side and side.plan else ()
    return {line.name: (line.target, line.predicted, line.verdict) for line in lines}


def number(value: float | None) -> str:
    """With about three digits that count, and separators."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}" if size >= 0.01 else f"{value:.2g}"


def percent(part: float | Fraction, whole: float | None) -> str:
    """A signed share of what there was, or the amount itself where there was nothing."""
    if not whole:
        return f"{'+' if part > 0 else ''}{number(float(part))}"
    share = 100 * float(part) / abs(whole)
    return f"{share:+,.0f}%" if abs(share) >= 10 else f"{share:+.1f}%"


def rows(pair: Pair) -> list[Row]:
    """Metrics that are not the same; of a new deployment all it has, of a removed one none."""
    if pair.status == "removed":
        return []
    every = [_row(change) for change in pair.changes if not _nothing(change)]
    return [row for row in every if row.judgement != "same"]


def unmoved(pair: Pair) -> str:
    """Names of the metrics that are the same on both sides."""
    if pair.before is None or pair.after is None:
        return ""
    same = [change for change in pair.changes if not _nothing(change)]
    return ", ".join(LABELS[item.name] for item in same if _row(item).judgement == "same")


def _nothing(change: Change) -> bool:
    return change.before is None and change.after is None


def _row(change: Change) -> Row:
    label = f"{LABELS[change.name]}, {change.unit}"
    values = number(change.before), number(change.after)
    delta = change.delta
    if delta is None:
        moved = "new" if change.before is None else "gone"
        return Row(label, *values, moved, "", "worse" if change.worse else "")
    if abs(delta) <= SMALLEST_SHARE * abs(change.before or 0):
        return Row(label, *values, "same", "", "same")
    size = max(abs(change.before or 0), abs(change.after or 0))
    exact = change.band <= ROUNDING * size
    band = "exact" if exact else percent(change.band, change.before).replace("+", "±")
    return Row(label, *values, percent(delta, change.before), band, _judgement(change))


def _judgement(change: Change) -> str:
    if not change.significant:
        return "within band"
    return "changed" if change.better is None else "worse" if change.worse else "better"


def shares(pair: Pair) -> list[tuple[str, str]]:
    """What each cause did, in a line; none where there is one cause, or no change."""
    found: dict[str, list[str]] = {}
    for change in pair.changes:
        for cause, share in change.by.items() if change.name in SHARED_OUT else ():
            if abs(share) > SMALLEST_SHARE * abs(change.before or 0):
                text = f"{LABELS[change.name]} {percent(share, change.before)}"
                found.setdefault(cause, []).append(text)
    if single_cause(pair) is not None:
        return []
    return [(cause, ", ".join(found[cause])) for cause in sorted(found)]


def single_cause(pair: Pair) -> str | None:
    """The one cause of everything, if there is one."""
    names = {name for change in pair.changes for name in change.by}
    return names.pop() if len(names) == 1 else None


def changed(pair: Pair) -> list[tuple[str, str, str]]:
    """What was changed: a key or a group, its values, and where it is written now."""
    found = []
    by_cause: dict[str | None, list[Leaf]] = {}
    for leaf in pair.leaves:
        by_cause.setdefault(leaf.cause, []).append(leaf)
    for cause, several in by_cause.items():
        if cause and len(several) > FEW:
            found.append(_group(cause, several))
            continue
        for leaf in several:
            values = f"{_value(leaf.before)} -> {_value(leaf.after)}"
            found.append((leaf.key, values, _written(leaf.origin)))
    return sorted(found)


def _group(cause: str, several: list[Leaf]) -> tuple[str, str, str]:
    name = next((leaf for leaf in several if leaf.key == f"{cause}.name"), None)
    values = f"{_value(name.before)} -> {_value(name.after)}" if name else "another option"
    files = Counter(leaf.origin.rpartition(":")[0] or leaf.origin for leaf in several)
    most = max(sorted(files), key=lambda file: files[file])
    origin = name.origin.rpartition(":")[0] or name.origin if name else most
    return f"{cause} ({len(several)} keys)", values, _written(origin)


def _written(origin: str) -> str:
    """Where a value is written, in short; JSON has it whole."""
    if origin.startswith("derived: "):
        return "by a rule"
    return "the command line" if origin.startswith("the command line (") else origin


def _value(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 40 else shown(value)
