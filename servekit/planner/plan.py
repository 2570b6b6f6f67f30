"""What a configuration comes to, before anything is loaded: arithmetic, no device, no download."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servekit.config.origins import Origin
from servekit.config.schema import Config
from servekit.planner.advice.advice import Advice
from servekit.planner.advice.advice import advise as find
from servekit.planner.outcome import Outcome, assess
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
    config: Config, *, advise: bool = True, origins: Mapping[str, Origin] | None = None
) -> Plan:
    """Raises nothing: what does not fit is a plan that says so, with advice.

    With the `origins` of a composed configuration, advice is what its words may be followed by;
    without them every value counts as given. `advise=False` leaves the search out.
    """
    outcome = assess(config)
    return Plan(
        config=config,
        ledger=outcome.ledger,
        prediction=outcome.prediction,
        cost=outcome.cost,
        slo=outcome.slo,
        refusals=outcome.refusals,
        warnings=tuple(warnings(outcome)),
        advice=tuple(find(outcome, origins)) if advise else (),
    )
