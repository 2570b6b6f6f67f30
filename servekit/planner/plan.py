"""What a configuration comes to, before anything is loaded: arithmetic, no device, no download."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servekit.config.origins import Origin
from servekit.config.schema import Config
from servekit.planner.advice.advice import Advice
from servekit.planner.advice.advice import advise as find
from servekit.planner.outcome import Outcome, assess, judged
from servekit.planner.plan_json import outcome_json
from servekit.planner.warnings import warnings


@dataclass(frozen=True, slots=True)
class Plan(Outcome):
    """A prediction that start-up checks; picklable. `ledger` is that of the worst rank."""

    warnings: tuple[str, ...]
    advice: tuple[Advice, ...]

    def to_json(self) -> dict[str, Any]:
        """Strictly valid JSON, described key by key in docs/plan-json.md."""
        return {
            **outcome_json(self),
            "advice": [item.to_json() for item in self.advice],
            "warnings": list(self.warnings),
        }


def plan(
    config: Config,
    *,
    advise: bool = True,
    simulate: bool = True,
    origins: Mapping[str, Origin] | None = None,
) -> Plan:
    """What does not fit is a plan that says so, with advice. ConfigError only where the trace of
    the workload cannot be read.

    With the `origins` of a composed configuration, advice is what its words may be followed by;
    without them every value counts as given. `advise=False` leaves the search out;
    `simulate=False` leaves times to closed forms, so that a thousand plans take seconds.
    """
    closed = assess(config)
    outcome = judged(closed) if simulate else closed
    return Plan(
        config=config,
        ledger=outcome.ledger,
        prediction=outcome.prediction,
        cost=outcome.cost,
        slo=outcome.slo,
        refusals=outcome.refusals,
        warnings=tuple(warnings(outcome)),
        advice=tuple(find(outcome, closed, origins)) if advise else (),
    )
