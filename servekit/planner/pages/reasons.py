"""The verdict of a plan in words, and the sentence why."""

from servekit.planner.plan import Plan
from servekit.planner.slo import SloLine
from servekit.spec.model import GIB

HEADLINES = {
    "ok": "FITS",
    "unsure": "UNSURE",
    "misses_slo": "MISSES SLO",
    "impossible": "IMPOSSIBLE",
    "does_not_fit": "DOES NOT FIT",
}
VERDICT_STYLES = {
    "ok": "green",
    "unsure": "yellow",
    "misses_slo": "red",
    "impossible": "red",
    "does_not_fit": "red",
    "invalid": "red",
}


NAMES = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "goodput_per_s": "goodput",
    "usd_per_million_output_tokens": "cost",
}
"""What is promised, as people say it."""


def reason(made: Plan) -> str:
    """One sentence, also for a plan that is well."""
    if made.problem is not None:
        broken = made.broken[0] if made.broken else None
        return of_target(broken) if broken and broken.why == made.problem else made.problem
    if made.verdict == "unsure":
        return doubt(made)
    book = made.ledger
    room = f"{book.used_bytes / GIB:,.1f} of {book.total_bytes / GIB:,.1f} GiB"
    if not made.slo:
        return f"{room} of each device; no targets are set (slo=none)"
    count = len(made.slo)
    counted = {1: "the target is", 2: "both targets are"}
    met = f"{counted.get(count, f'all {count} targets are')} met"
    return f"{room} of each device, and {met}"


def doubt(made: Plan) -> str:
    """What is closer to its limit than the model is sure of."""
    if made.ledger.problem is not None:
        return made.ledger.problem
    return next(of_target(line) for line in made.slo if line.verdict == "unsure")


def of_target(line: SloLine) -> str:
    return f"{NAMES[line.name]}: {line.why}"
