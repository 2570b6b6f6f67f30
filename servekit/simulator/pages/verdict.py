"""Whether a simulated deployment keeps its promises, why not, and what to try."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from servekit.config.schema import Config
from servekit.simulator.pages.metrics import NONE, decimals, number
from servekit.simulator.pages.offload import unused
from servekit.simulator.record import Report, Target
from servekit.simulator.statistics import DOUBT, chance, fewest
from servekit.spec.memory import ledger

HEADLINES = {
    "meets": "MEETS SLO",
    "served": "SERVED",
    "unsure": "UNSURE",
    "too_few": "TOO FEW REQUESTS",
    "sheds": "REFUSES",
    "misses": "MISSES SLO",
    "saturated": "SATURATED",
    "nothing": "NOTHING SERVED",
}
STYLES = {
    "meets": "green",
    "served": "green",
    "unsure": "yellow",
    "too_few": "yellow",
    "sheds": "yellow",
    "misses": "red",
    "saturated": "red",
    "nothing": "red",
}
TARGETS = {"ttft": "time to first token", "tpot": "time per output token"}

NOTABLE = 0.01
"""Share of requests or tokens from which refusals, preemptions and waste are worth a sentence."""
FULL = 0.9
"""Share of seats, blocks or time from which that is what requests wait for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word of HEADLINES, and the sentence why."""

    word: str
    why: str


def of_target(target: Target) -> str:
    """`meets`, `misses`, or `unsure` where the target lies inside the interval.

    `too_few`: of so few requests even the slowest says nothing about such a percentile, unless more
    of them were late than are by chance where it is met.
    """
    _, low, high = target.value
    part = target.percentile / 100
    if math.isnan(low) or target.n < fewest(part):
        return "misses" if chance(target.late, target.n, part) < DOUBT else "too_few"
    if high <= target.target_s:
        return "meets"
    return "misses" if low > target.target_s else "unsure"


def verdict(report: Report) -> Verdict:
    """The gravest that applies: a queue that grows comes before what it does to the targets."""
    if not report.counts.get("finished"):
        return Verdict("nothing", f"of {total(report):,} requests none was answered")
    found = [(target, of_target(target)) for target in report.targets]
    said = {each for _, each in found}
    refused = report.refused_share.value
    keeps = found and "misses" not in said and refused >= NOTABLE
    if report.saturated and (grows(report) or not keeps):
        return Verdict("saturated", growth(report))
    if keeps:
        doubt = "whether the others meet the targets is not sure"
        rest = doubt if said & {"unsure", "too_few"} else "the others meet the targets"
        return Verdict("sheds", f"{number(100 * refused)} % of requests are refused; {rest}")
    for word in ("misses", "too_few", "unsure"):
        worst = next((target for target, each in found if each == word), None)
        if worst is not None:
            return Verdict(word, sentence(worst, word, report.alike))
    if refused >= NOTABLE:
        return Verdict("sheds", f"{number(100 * refused)} % of requests are refused")
    rate = f"{number(report.served_per_s.value)} requests/s served"
    if not found:
        return Verdict("served", f"{rate}; no targets are set (slo=none)")
    names = " and ".join(TARGETS[target.name] for target, _ in found)
    return Verdict("meets", f"{names} at p{found[0][0].percentile:g}; {rate}")


def total(report: Report) -> int:
    return sum(report.counts.values())


def grows(report: Report) -> bool:
    """The queue itself, by more than noise."""
    return report.queue_growth_per_s.low > 0


def growth(report: Report) -> str:
    """Where all that come in a second are: numbers that add up, to the digits that are shown."""
    came = report.offered_per_s.value
    digits = decimals(came)
    served, refused, left = (
        round(each.value, digits)
        for each in (report.served_per_s, report.refused_per_s, report.left_per_s)
    )
    said = [f"{number(came, digits)} requests/s come", f"{number(served, digits)} are served"]
    if refused:
        percent = number(100 * report.refused_share.value)
        said.append(f"{number(refused, digits)} ({percent} %) are refused")
    if left:
        said.append(f"{number(left, digits)} leave")
    stay = round(came, digits) - served - refused - left
    if grows(report) and stay > 0:
        said.append(f"{number(stay, digits)} stay{where(report, stay, digits)}")
    return f"{', '.join(said[:-1])} and {said[-1]}"


def where(report: Report, stay: float, digits: int) -> str:
    """In the queue, but for what a batch takes in that still fills."""
    queue = round(report.queue_growth_per_s.value, digits)
    if queue >= FULL * stay:
        return ": the queue grows"
    seated = number(stay - queue, digits)
    return f": {number(queue, digits)} in the queue, which grows, {seated} with a seat"


def sentence(target: Target, word: str, alike: int) -> str:
    more = "a longer trace" if alike else "more --requests or --seeds"
    percentile, limit = f"p{target.percentile:g}", f"{number(1000 * target.target_s)} ms"
    value, low, high = target.value
    if word == "too_few":
        counted = "1 request counts" if target.n == 1 else f"{target.n:,} requests count"
        return (
            f"{TARGETS[target.name]}: {counted}, and to tell a {percentile} takes "
            f"{fewest(target.percentile / 100):,}: {more} would"
        )
    if math.isnan(value):
        return f"{TARGETS[target.name]}: no request has one; the target is {limit}"
    if word == "unsure":
        between = f"{number(1000 * low)} to {number(1000 * high)} ms"
        return (
            f"{TARGETS[target.name]}: {percentile} is {between}, the target {limit}; {more} "
            "would tell"
        )
    times = f"{number(value / target.target_s)} times the target of {limit}"
    return f"{TARGETS[target.name]}: {percentile} is {number(1000 * value)} ms, {times}"


def advice(report: Report, config: Config) -> list[str]:
    """What to try, the first thing first; empty where nothing stands out."""
    found = list(unfit(config))
    missed = {target.name for target in report.targets if of_target(target) == "misses"}
    if report.saturated or "ttft" in missed:
        found.append(bottleneck(report, config))
    if report.saturated and config.slo.ttft_ms is not None and config.slo.admission == "observe":
        found.append(
            "slo.admission=enforce refuses what would be late, with a time to come again, so that "
            "those accepted are in time"
        )
    if "tpot" in missed and not (report.saturated and "ttft" in missed):
        found.append(slow_tokens(report, config))
    if report.preempted_share.value >= NOTABLE or report.wasted_share.value >= NOTABLE:
        found.append(preemptions(report, config))
    if (said := unused(report, config)) is not None:
        found.append(said)
    left = report.left_share.value
    if left >= NOTABLE:
        patience = f"{config.workload.patience_s or 0:g} s"
        found.append(f"{number(100 * left)} % of clients left after {patience} without an answer")
    return found


def unfit(config: Config) -> Iterator[str]:
    """A named size of the cache is simulated even where no device has the memory."""
    book = ledger(config)
    if not book.fits:
        yield f"this deployment does not fit: {book.problem}; servekit plan says what would"


def bottleneck(report: Report, config: Config) -> str:
    """What requests wait for: seats, blocks, or the device itself."""
    seats = config.scheduler.max_num_seqs * config.parallelism.data
    if config.scheduler.policy == "static" and report.idle_seat_share.value >= NOTABLE:
        return (
            f"{number(100 * report.idle_seat_share.value)} % of seats are empty while others wait "
            "for the batch to end: scheduler=continuous fills them"
        )
    copies = f"parallelism.data={config.parallelism.data + 1}"
    rest = f"try {copies}, faster hardware, or a lower workload.request_rate"
    most = min((ms for ms in (config.scheduler.max_step_ms, config.slo.tpot_ms) if ms), default=0.0)
    if most and 1000 * report.step_s.value >= FULL * most:
        return (
            f"a step takes {number(1000 * report.step_s.value)} ms of the {most:g} that it may, so "
            f"more seats or blocks would not help: {rest}"
        )
    if report.running.value >= FULL * seats:
        more = f"scheduler.max_num_seqs={2 * config.scheduler.max_num_seqs}"
        return f"all {seats:,} seats are taken: try {more}"
    if report.kv_mean_share.value >= FULL or report.kv_max_share >= 1 - NOTABLE:
        half = "" if config.kv.dtype.startswith(("fp8", "int", "nvfp4")) else "kv.dtype=fp8, "
        return (
            f"KV blocks are what requests wait for ({number(100 * report.kv_mean_share.value)} % "
            f"held on average): try {half}a larger cache or shorter answers"
        )
    return f"steps take {number(100 * report.busy_share.value)} % of the time: {rest}"


def slow_tokens(report: Report, config: Config) -> str:
    """Between prompts that stretch steps and a batch that is too large for the target."""
    if report.itl.p95.value > 2 * report.itl.p50.value and config.scheduler.decode_slowdown is None:
        return (
            f"prompts stretch steps (between tokens p95 is {number(1000 * report.itl.p95.value)} "
            f"ms, p50 {number(1000 * report.itl.p50.value)}): try scheduler=slo_aware or a lower "
            "scheduler.max_step_ms"
        )
    seats = max(1, math.floor(report.running.value / config.parallelism.data / 2))
    return (
        f"{number(report.batch_decodes.value)} answers go on in a step on average: try "
        f"scheduler.max_num_seqs={seats}, faster hardware, or more copies (parallelism.data)"
    )


def preemptions(report: Report, config: Config) -> str:
    rule = config.scheduler
    if rule.reserve == "greedy":
        better = "scheduler.reserve=predicted"
    elif rule.reserve == "predicted" and rule.reserve_quantile < 0.99:
        better = "scheduler.reserve_quantile=0.99"
    else:
        better = "a larger cache"
    return (
        f"{number(100 * report.preempted_share.value)} % of requests are preempted and "
        f"{number(100 * report.wasted_share.value)} % of tokens computed twice: try {better}"
    )


def ends(report: Report) -> str:
    """How requests ended, in words; refusals by code."""
    said = [f"{count:,} {end}" for end, count in report.counts.items() if count]
    codes = ", ".join(f"{code} {count:,}" for code, count in report.refused.items())
    text = f"in all {', '.join(said) or NONE}"
    if codes:
        text += f" (refused: {codes})"
    if report.retry_after_s is not None:
        text += f"; told to come again after {number(report.retry_after_s)} s (median)"
    if report.cut:
        text += f"; {report.cut:,} were longer than model.max_model_len and were cut to it"
    return text
