"""What `servekit diff` has found, for its page, its markdown and its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servekit.planner.diff.difference import Change, Leaf, Pair
from servekit.planner.diff.sides import Side


@dataclass(frozen=True, slots=True)
class Report:
    """`before` and `after` are words or revisions, as given; `broken` has, by pair, the policies
    that it breaks, each with its reason."""

    before: str
    after: str
    pairs: tuple[Pair, ...]
    broken: Mapping[str, tuple[tuple[str, str], ...]]

    @property
    def exit_code(self) -> int:
        return 2 if any(self.broken.values()) else 0

    def to_json(self) -> dict[str, Any]:
        """The keys are fixed for scripts; numbers are not rounded."""
        return {
            "before": self.before,
            "after": self.after,
            "pairs": [_pair(pair, self.broken[pair.name]) for pair in self.pairs],
            "exit_code": self.exit_code,
        }


def _pair(pair: Pair, broken: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    before, after = pair.verdicts
    return {
        "name": pair.name,
        "status": pair.status,
        "changed": [_leaf(leaf) for leaf in pair.leaves],
        "verdict": {"before": before, "after": after, "because": list(pair.because)},
        "metrics": {change.name: _change(change) for change in pair.changes},
        "no_effect": list(pair.idle),
        "notes": list(pair.notes),
        "problems": {"before": _problems(pair.before), "after": _problems(pair.after)},
        "failed": [{"policy": policy, "reason": reason} for policy, reason in broken],
    }


def _leaf(leaf: Leaf) -> dict[str, Any]:
    return {
        "key": leaf.key,
        "before": leaf.before,
        "after": leaf.after,
        "origin": leaf.origin,
        "cause": leaf.cause,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "before": change.before,
        "after": change.after,
        "delta": change.delta,
        "band": change.band,
        "significant": change.significant,
        "unit": change.unit,
        "better": change.better,
        "by": {cause: float(share) for cause, share in change.by.items()},
    }


def _problems(side: Side | None) -> list[str]:
    if side is None:
        return []
    refused = side.plan.problem if side.plan else None
    return [*side.problems, *([refused] if refused else [])]
