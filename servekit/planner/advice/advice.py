"""The smallest changes that mend a refused plan, each planned before it is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servekit.config.origins import Origin
from servekit.planner.advice.change import starting_point
from servekit.planner.advice.search import search
from servekit.planner.outcome import Outcome
from servekit.spec.model import GIB


@dataclass(frozen=True, slots=True)
class Advice:
    """Command-line words, and what the deployment is with them.

    They are meant to follow the words of the plan. `effect` has numbers after the change and,
    under `before`, those that were otherwise. `planned_only` is True where the gate of this
    release would refuse the deployment all the same.
    """

    overrides: tuple[str, ...]
    effect: dict[str, Any]
    planned_only: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "overrides": list(self.overrides),
            "effect": self.effect,
            "planned_only": self.planned_only,
        }


def advise(outcome: Outcome, origins: Mapping[str, Origin] | None = None) -> list[Advice]:
    """What passes in place of a plan that is refused or unsure, the best first.

    `origins` say which values were derived and so move with others; with them, advice holds for
    the words that the configuration was composed of. For an unsure plan only what is sure is given.
    """
    if outcome.verdict == "ok":
        return []
    return [
        Advice(
            overrides=tuple(change.word for change in found.point.changes),
            effect=effect(outcome, found.outcome),
            planned_only=found.planned_only,
        )
        for found in search(starting_point(outcome.config, origins))
        if outcome.verdict != "unsure" or found.outcome.verdict == "ok"
    ]


def effect(before: Outcome, after: Outcome) -> dict[str, Any]:
    """Numbers with the change, and under `before` what they were where they differ."""
    old, new = numbers(before), numbers(after)
    changed = {name: old[name] for name in old if old[name] != new.get(name)}
    return {**new, "before": changed}


def numbers(outcome: Outcome) -> dict[str, Any]:
    """Without latency where the memory does not fit, and without a price where none is given."""
    book, made = outcome.ledger, outcome.prediction
    found: dict[str, Any] = {
        "verdict": outcome.verdict,
        "capacity_tokens": book.layout.capacity_tokens,
        "max_concurrency": round(outcome.max_concurrency, 2),
        "kv_gib": round(book.kv.bytes / GIB, 3),
        "unused_gib": round(book.unused_bytes / GIB, 3),
    }
    if outcome.cost.usd_per_hour is not None:
        found["usd_per_hour"] = round(outcome.cost.usd_per_hour, 4)
    if made is not None:
        for name, times in (("ttft_p95_ms", made.ttft_ms), ("tpot_p95_ms", made.tpot_ms)):
            if times.p95 is not None:
                found[name] = round(times.p95, 2)
    return found
