"""Why one of several simulated configurations gives more than another."""

from collections.abc import Iterator

from servekit.simulator.pages.metrics import number
from servekit.simulator.pages.verdict import unfit
from servekit.simulator.record import Comparison, Difference, Report

ALIKE = 0.02
"""Relative difference below which two numbers are called the same."""
NOTABLE = 0.02
"""Difference of two shares from which it is worth a sentence."""

SHARES = (
    ("padding_share", "{} of the rows of tokens only fill a captured graph"),
    ("wasted_share", "{} of the tokens are computed twice, after a preemption"),
    ("hit_share", "{} of the prompt tokens are found in the cache"),
)
"""What else explains a difference: the share, and what is said of it."""


def reasons(comparison: Comparison) -> list[str]:
    """Sentences about what all gave against the one that gave least."""
    reports = dict(zip(comparison.names, comparison.reports, strict=True))
    runs = zip(comparison.names, comparison.runs, strict=True)
    too_large = [f"{name}: {said}" for name, run in runs for said in unfit(run.config)]
    answered = {name: found for name, found in reports.items() if found.counts.get("finished")}
    if len(answered) < 2:
        return too_large
    least = min(answered, key=lambda name: answered[name].output_tokens_per_s.value)
    others = [name for name in answered if name != least]
    more = [name for name in others if gives_more(answered[name], answered[least])]
    if not more:
        return [*too_large, same(answered)]
    said = too_large + [throughput(name, answered[name], least, answered[least]) for name in more]
    said += seats(comparison)
    said += idle(comparison, answered)
    for key, sentence in SHARES:
        said += share(answered, key, sentence)
    return said


def gives_more(report: Report, least: Report) -> bool:
    return report.output_tokens_per_s.value > (1 + ALIKE) * least.output_tokens_per_s.value


def same(reports: dict[str, Report]) -> str:
    if any(report.saturated for report in reports.values()):
        return "all give the same output: what limits them is not what they differ in"
    return (
        "all give the same output, because all keep up with the requests that come: compare "
        "latencies, or simulate a higher workload.request_rate"
    )


def throughput(name: str, report: Report, least: str, beside: Report) -> str:
    """Output a second is answers that go on in a step, by steps a second."""
    ratio = report.output_tokens_per_s.value / max(1e-12, beside.output_tokens_per_s.value)
    parts = [
        compared(report.batch_decodes.value, beside.batch_decodes.value, "answers go on in a step"),
        compared(
            steps_per_s(report),
            steps_per_s(beside),
            f"steps a second ({number(1000 * report.step_s.value)} ms each instead of "
            f"{number(1000 * beside.step_s.value)})",
        ),
    ]
    return f"{name} gives {number(ratio)} times the output of {least}: {'; '.join(parts)}"


def steps_per_s(report: Report) -> float:
    """Of one copy."""
    return report.busy_share.value / max(1e-12, report.step_s.value)


def compared(value: float, beside: float, what: str) -> str:
    times = f" ({number(value / beside)} times)" if beside > 0 else ""
    return f"{number(value)} instead of {number(beside)}{times} {what}"


def seats(comparison: Comparison) -> Iterator[str]:
    """Where they do not have equally many, so that nobody takes that for a better order."""
    counts = [run.config.scheduler.max_num_seqs for run in comparison.runs]
    if len(set(counts)) > 1:
        pairs = zip(comparison.names, counts, strict=True)
        each = ", ".join(f"{name} {count:,}" for name, count in pairs)
        yield f"requests that may run at once differ (scheduler.max_num_seqs): {each}"


def idle(comparison: Comparison, reports: dict[str, Report]) -> Iterator[str]:
    """Seats that a static batch leaves empty although somebody waits.

    With continuous batching such seats wait for time or blocks: nothing is lost by them.
    """
    rules = {
        name: run.config.scheduler.policy
        for name, run in zip(comparison.names, comparison.runs, strict=True)
    }
    shares = {name: report.idle_seat_share.value for name, report in reports.items()}
    least = min(shares, key=shares.__getitem__)
    for name in reports:
        if rules[name] == "static" and shares[name] - shares[least] >= NOTABLE:
            yield (
                f"{name} leaves {number(100 * shares[name])} % of its seats empty while others "
                f"wait for its batch to end, {least} {number(100 * shares[least])} %"
            )


def share(reports: dict[str, Report], key: str, sentence: str) -> Iterator[str]:
    values = {name: getattr(report, key).value for name, report in reports.items()}
    known = [value for value in values.values() if value == value]
    if known and max(known) - min(known) >= NOTABLE:
        each = ", ".join(f"{number(100 * value)} % ({name})" for name, value in values.items())
        yield sentence.format(each)


def best(comparison: Comparison, key: str, better: str) -> str | None:
    """Who is clearly best in a number."""
    found = {"higher": comparison.highest, "lower": comparison.lowest}
    return found.get(better, {}).get(key)


def by_key(differences: tuple[Difference, ...]) -> dict[str, Difference]:
    return {found.key: found for found in differences}
