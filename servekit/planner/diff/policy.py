"""`--fail-on`: what may not happen in a change; a table of states and a table of limits."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from servekit.errors import ConfigError
from servekit.planner.diff.difference import Change, Pair


def _problem(pair: Pair) -> str:
    """The planner's own sentence."""
    plan = pair.after.plan if pair.after else None
    return (plan.problem if plan else None) or "the plan is refused"


def _does_not_fit(pair: Pair) -> str | None:
    return _problem(pair) if pair.verdicts[1] == "does_not_fit" else None


def _impossible(pair: Pair) -> str | None:
    return _problem(pair) if pair.verdicts[1] == "impossible" else None


def _slo(pair: Pair) -> str | None:
    if pair.verdicts[1] not in ("misses_slo", "impossible"):
        return None
    plan = pair.after.plan if pair.after else None
    missed = [line.name for line in plan.broken] if plan else []
    return f"it misses {', '.join(missed)}" if missed else _problem(pair)


def _invalid(pair: Pair) -> str | None:
    sides = zip(("before", "after"), pair.verdicts, strict=True)
    found = [when for when, verdict in sides if verdict == "invalid"]
    return f"the configuration is not valid {' and '.join(found)}" if found else None


def _worse(pair: Pair) -> str | None:
    if pair.status in ("added", "removed"):
        return None
    before, after = pair.verdicts
    if before in RANK and after in RANK and RANK[after] > RANK[before]:
        return f"the verdict goes from {before} to {after}"
    worse = [change.name for change in pair.changes if change.worse]
    return f"worse by more than the band: {', '.join(worse)}" if worse else None


RANK = {"ok": 0, "unsure": 1, "misses_slo": 2, "impossible": 3, "does_not_fit": 4, "invalid": 5}
"""Verdicts from good to bad."""


def _any(pair: Pair) -> str | None:
    found = (test(pair) for test in (_does_not_fit, _slo, _invalid, _worse))
    return next((reason for reason in found if reason), None)


STATES: dict[str, tuple[Callable[[Pair], str | None], str]] = {
    "does_not_fit": (_does_not_fit, "a deployment does not fit its hardware"),
    "impossible": (_impossible, "a target is below a lower bound"),
    "slo": (_slo, "a target is missed"),
    "invalid": (_invalid, "a configuration is not valid, on either side"),
    "worse": (_worse, "a verdict, or a number by more than its band, gets worse"),
    "any": (_any, "one of these"),
}

LIMITS: dict[str, tuple[str, ...]] = {
    "cost": ("usd_per_hour", "usd_per_million_output_tokens"),
    "ttft": ("ttft_p50_ms", "ttft_p95_ms"),
    "tpot": ("tpot_p50_ms", "tpot_p95_ms"),
    "capacity": ("capacity_tokens",),
    "concurrency": ("max_concurrency",),
    "throughput": ("output_tokens_per_s",),
    "goodput": ("goodput_per_s",),
}
"""Metrics that may get worse by a percentage and no more; one above it is enough to fail."""


ROUNDING = 1e-9
"""From 1.0 to 1.1 is 10 %, though not in binary fractions."""


@dataclass(frozen=True, slots=True)
class Policy:
    """As it was written; `percent` is None for a state."""

    text: str
    name: str
    percent: float | None

    def reason(self, pair: Pair) -> str | None:
        """Why a pair fails; None if it does not."""
        if self.percent is None:
            return STATES[self.name][0](pair)
        changes = [change for change in pair.changes if change.name in LIMITS[self.name]]
        if pair.status in ("added", "removed", "invalid"):
            return None
        return next(filter(None, (_beyond(change, self.percent) for change in changes)), None)


def policies(text: str) -> tuple[Policy, ...]:
    """Those of a comma-separated list; raises ConfigError for one that does not exist."""
    words = [word.strip() for word in text.split(",")]
    return tuple(_policy(word) for word in words)


def _policy(word: str) -> Policy:
    limit = re.fullmatch(r"(\w+)\s*>\s*(\d+(?:\.\d+)?)\s*%", word)
    if word in STATES:
        return Policy(word, word, None)
    if limit and limit[1] in LIMITS:
        return Policy(word, limit[1], float(limit[2]))
    raise ConfigError(
        f"--fail-on has no policy {word!r}; there are {', '.join(STATES)}, and "
        f"{', '.join(f'{name}>N%' for name in LIMITS)}"
    )


def _beyond(change: Change, percent: float) -> str | None:
    """A metric that is worse by more than `percent`, or is gone; 0 can only get better or worse."""
    if change.before is None:
        return None
    if change.after is None or change.delta is None:
        return f"{change.name} has no value any more"
    loss = -change.delta if change.better == "higher" else change.delta
    if loss <= abs(change.before) * percent / 100 * (1 + ROUNDING):
        return None
    share = f"{100 * loss / abs(change.before):.1f}%" if change.before else "from nothing"
    return f"{change.name} is {share} worse"


def failures(given: tuple[Policy, ...] | None, pair: Pair) -> Iterator[tuple[str, str]]:
    """Policies that a pair breaks, each with its reason.

    A deployment that is not valid after the change fails always: nothing can be said of it. One
    that was not valid before fails without --fail-on, and with it where `invalid` is listed.
    """
    listed = given if given is not None else (_policy("invalid"),)
    if pair.verdicts[1] == "invalid" and not any(
        item.name in ("invalid", "any") for item in listed
    ):
        listed = (*listed, _policy("invalid"))
    for policy in listed:
        if reason := policy.reason(pair):
            yield policy.text, reason
