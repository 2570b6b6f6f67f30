"""The smallest changes that mend a refused plan, each planned before it is given.

Closed forms find them, as they are many; what has a target for times is then simulated as its own
plan would be, so that it passes where it is pasted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from servekit.config.origins import Origin
from servekit.planner.advice.change import starting_point
from servekit.planner.advice.search import ENOUGH, Found, search
from servekit.planner.outcome import AS_IT_IS, Correction, Outcome, assess, judged
from servekit.planner.prediction.simulated import seconds_of_run
from servekit.spec.model import GIB

MOST_RUNS_S = 0.6
"""Seconds of simulated runs, as `simulated` estimates them, that of the plan itself among them."""


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


def advise(
    outcome: Outcome, closed: Outcome, origins: Mapping[str, Origin] | None = None
) -> list[Advice]:
    """What passes in place of a plan that is refused or unsure, the best first.

    `closed` is the outcome before its times were simulated. `origins` say which values were derived
    and so move with others; with them, advice holds for the words that the configuration was
    composed of. For an unsure plan only what is sure is given.
    """
    if outcome.verdict == "ok":
        return []
    found = search(starting_point(outcome.config, origins), correction(outcome, closed))
    left = MOST_RUNS_S
    if closed.prediction is not None and is_simulated(outcome):
        left -= seconds_of_run(closed.config, closed.prediction)
    passing = islice(verified(found, left, only_sure=outcome.verdict == "unsure"), ENOUGH)
    return [
        Advice(
            overrides=tuple(change.word for change in item.point.changes),
            effect=effect(outcome, item.outcome),
            planned_only=item.planned_only,
        )
        for item in sorted(passing, key=lambda item: item.rank)
    ]


def correction(outcome: Outcome, closed: Outcome) -> Correction:
    """Simulated times over those of closed forms, at the percentile of the slo."""
    if outcome.prediction is None or closed.prediction is None or not is_simulated(outcome):
        return AS_IT_IS
    seen, said = outcome.prediction.at_slo, closed.prediction.at_slo
    return Correction(ratio(seen.ttft_ms, said.ttft_ms), ratio(seen.tpot_ms, said.tpot_ms))


def ratio(seen: float | None, said: float | None) -> float:
    return seen / said if seen and said else 1.0


def verified(found: list[Found], seconds: float, *, only_sure: bool) -> Iterator[Found]:
    """Those that pass as their own plan would judge them; of runs, those there is time for in so
    many seconds, but one more where none has passed yet.

    What promises no times, and what is too long to simulate, is judged by closed forms there too.
    """
    left, none_yet = seconds, True
    for item in found:
        after = item.outcome
        made, slo = after.prediction, after.config.slo
        if made is not None and (slo.ttft_ms is not None or slo.tpot_ms is not None):
            takes = seconds_of_run(after.config, made)
            if takes > left and not (none_yet and left > 0):
                continue
            left -= takes
            after = judged(assess(after.config, after.ledger))
        if after.verdict == "ok" or (not only_sure and after.exit_code == 0):
            none_yet = False
            yield replace(item, outcome=after)


def is_simulated(outcome: Outcome) -> bool:
    return outcome.prediction is not None and outcome.prediction.sampled is not None


def effect(before: Outcome, after: Outcome) -> dict[str, Any]:
    """Numbers with the change, and under `before` what they were where they differ. Times that are
    simulated are not set beside closed forms: then there are none.
    """
    apart = is_simulated(before) and not is_simulated(after)
    old, new = (numbers(outcome, times=not apart) for outcome in (before, after))
    changed = {name: old[name] for name in old if old[name] != new.get(name)}
    return {**new, "before": changed}


def numbers(outcome: Outcome, *, times: bool) -> dict[str, Any]:
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
    if made is not None and times:
        for name, at in (("ttft_p95_ms", made.ttft_ms), ("tpot_p95_ms", made.tpot_ms)):
            if at.p95 is not None:
                found[name] = round(at.p95, 2)
    return found
