"""What policies promise, measured in simulations. `benchmarks.policies` asks for it in many
settings, and the tests in small ones.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.simulator.compare import Option, compare
from servekit.simulator.pages.reasons import reasons
from servekit.simulator.record import Report, Run, Served
from servekit.simulator.report import report
from servekit.simulator.run import simulate
from servekit.simulator.statistics import percentile, weighted_percentiles

BASE = ("name=claims", "model=llama3_8b", "hardware=h100", "workload=chat")
ENDLESS = "scheduler.max_num_waiting=1000000"
"""Nobody is refused because too many wait."""


def configured(*words: str) -> Config:
    return load([*BASE, *words], None).config


def run_of(*words: str, requests: int, seed: int = 1) -> Run:
    return simulate(configured(*words), requests=requests, seed=seed)


def last_arrival(run: Run) -> float:
    """Until then there is always more to do, where more comes than is served."""
    return run.served[-1].at


class Gap(NamedTuple):
    """Static and continuous batching."""

    ratio: float
    """Output a second of continuous over that of static."""
    expected: float
    """The same by arithmetic, were there as many seats in both."""
    explained: bool
    """The comparison says that static leaves seats empty."""
    static: Report
    continuous: Report


def gap(*words: str, requests: int, seeds: Sequence[int] = (1,)) -> Gap:
    names = ("static", "continuous")
    options = [Option(name, configured(f"scheduler={name}", *words)) for name in names]
    found = compare("scheduler", options, requests=requests, seeds=seeds)
    static, continuous = found.reports
    said = any("static leaves" in why and "seats empty" in why for why in reasons(found))
    ratio = continuous.output_tokens_per_s.value / static.output_tokens_per_s.value
    return Gap(ratio, expected_gap(found.runs[0]), said, static, continuous)


def expected_gap(static: Run) -> float:
    """A batch lasts as long as the largest of its answers, and seats that are filled again as long
    as the mean one; prompts take their time either way (Amdahl).
    """
    seats = static.config.scheduler.max_num_seqs
    lengths = [one.output_tokens for one in static.served]
    batches = [lengths[at : at + seats] for at in range(0, len(lengths) - seats + 1, seats)]
    decodes = seats * sum(map(max, batches)) / sum(map(sum, batches))
    steps = static.copies[0].steps
    pairs = zip(steps.seconds, steps.prompt_tokens, strict=True)
    prompts = sum(seconds for seconds, tokens in pairs if tokens) / sum(steps.seconds)
    return 1.0 / (prompts + (1.0 - prompts) / decodes)


Rows = list[tuple[float, int, int]]
"""Of a trace: arrival, prompt tokens, output tokens."""


def decoders(count: int, tokens: int) -> Rows:
    """Who read along from the beginning and stay."""
    return [(0.05 * index, 500, tokens) for index in range(count)]


def passing(rate: float, tokens: int, until: float) -> Rows:
    """Who come and go."""
    random, at, rows = Random(1), 0.0, []
    while at < until:
        rows.append((at, 500, max(2, int(random.expovariate(1 / tokens)))))
        at += random.expovariate(rate)
    return rows


def replay(rows: Rows, *words: str) -> Run:
    keys = ("arrival_s", "input_tokens", "output_tokens")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in sorted(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return run_of(*words, f"workload.trace={path}", requests=len(rows))


class Beside(NamedTuple):
    """Those who read along while a long prompt waits or is computed; seconds."""

    itl_p99_s: float
    alone_p99_s: float
    """The same without the long prompt, in the same time."""
    long: Served
    ttft_p95_s: float
    """Of those who came meanwhile; NaN: nobody did."""

    @property
    def ratio(self) -> float:
        return self.itl_p99_s / self.alone_p99_s


def beside_long(others: Rows, *words: str, at: float = 4.0, tokens: int = 100_000) -> Beside:
    fits = "model.max_model_len=131072"
    run = replay([*others, (at, tokens, 20)], fits, *words)
    alone = replay(others, fits, *words)
    [long] = [one for one in run.served if one.prompt_tokens == tokens]
    until = long.first_token_at or run.seconds
    waits = sorted(one.ttft_s or run.seconds for one in run.served if at < one.at < until)
    return Beside(pause(run, at, until), pause(alone, at, until), long, percentile(waits, 0.95))


def pause(run: Run, start: float, end: float, share: float = 0.99) -> float:
    """Percentile of the times between tokens, seconds."""
    gaps = run.copies[0].gaps
    every = zip(gaps.at, gaps.seconds, gaps.count, strict=True)
    seen = [(seconds, count) for at, seconds, count in every if start <= at <= end]
    return weighted_percentiles(*zip(*seen, strict=True), [share])[0]


class Full(NamedTuple):
    """A cache that is as good as full."""

    preempted: float
    """Share of requests."""
    wasted: float
    """Share of tokens."""
    output_per_s: float
    kv_share: float


def full(*words: str, requests: int, seed: int = 1) -> Full:
    run = run_of(*words, requests=requests, seed=seed)
    found = report("full", [run])
    preempted = sum(one.preemptions > 0 for one in run.served) / len(run.served)
    output = found.output_tokens_per_s.value
    return Full(preempted, found.wasted_share.value, output, found.kv_mean_share.value)


class Classes(NamedTuple):
    """A class that goes first, and one that does not."""

    high_p99_s: float
    """Until seated."""
    high_per_s: float
    """Output tokens while more came than was served."""
    low_per_s: float
    low_least: float
    """Tokens of the low class in the worst tenth of that time over those of the average tenth."""


def classes(run: Run, is_high: Callable[[Served], bool]) -> Classes:
    end = last_arrival(run)
    high = [one for one in run.served if is_high(one)]
    low = [one for one in run.served if not is_high(one)]
    waits = sorted(one.queue_s if one.queue_s is not None else run.seconds for one in high)
    tenths = [end * index / 10 for index in range(1, 11)]
    seen = [said(low, at) for at in tenths]
    tenth = [after - before for before, after in pairwise(seen)]
    return Classes(
        percentile(waits, 0.99),
        said(high, end) / end,
        said(low, end) / end,
        min(tenth) * len(tenth) / max(1.0, sum(tenth)),
    )


def said(requests: Sequence[Served], until: float) -> float:
    """Output tokens by then: evenly between first and last token."""
    total = 0.0
    for one in requests:
        first, last = one.first_token_at, one.finished_at
        if first is None or last is None or first >= until:
            continue
        share = 1.0 if last <= until else (until - first) / (last - first)
        total += share * one.output_tokens
    return total


class Overload(NamedTuple):
    """More comes than can be served in time."""

    in_time: float
    """Share of those accepted whose first token came within slo.ttft_ms."""
    goodput_per_s: float
    refused: float
    """Share of requests."""
    retry_after_s: float
    """The least that anybody was told; NaN: nobody was refused."""


def overload(*words: str, requests: int, seed: int = 1) -> Overload:
    run = run_of("slo=chat", *words, requests=requests, seed=seed)
    target = run.config.slo.ttft_ms or 0.0
    accepted = [one for one in run.served if one.end != "refused"]
    refused = [one for one in run.served if one.end == "refused"]
    soon = sum(one.ttft_s is not None and 1000 * one.ttft_s <= target for one in accepted)
    told = [one.retry_after_s or 0.0 for one in refused]
    return Overload(
        soon / len(accepted),
        report("overload", [run]).goodput_per_s.value,
        len(refused) / len(run.served),
        min(told, default=float("nan")),
    )


class Shares(NamedTuple):
    """Two tenants, `modest` and `greedy`; tokens a second, prompts too."""

    modest: float
    due: float
    """What modest asked for, or its share by weight of all that was served, if that is less."""
    total: float

    @property
    def ratio(self) -> float:
        return self.modest / self.due


def shares(run: Run) -> Shares:
    """While more came than was served, its first fifth aside."""
    end = last_arrival(run)
    start = end / 5
    mine = [one for one in run.served if one.tenant == "modest"]
    others = [one for one in run.served if one.tenant != "modest"]
    modest, rest = ((got(each, end) - got(each, start)) / (end - start) for each in (mine, others))
    asked = sum(one.prompt_tokens + one.output_tokens for one in mine if start < one.at)
    weights = run.config.scheduler.tenant_weights
    weight, other = weights.get("modest", 1.0), weights.get("greedy", 1.0)
    due = min(asked / (end - start), weight / (weight + other) * (modest + rest))
    return Shares(modest, due, modest + rest)


def got(requests: Sequence[Served], until: float) -> float:
    """Tokens by then, those of a prompt with the first of its answer."""
    first = [one for one in requests if one.first_token_at and one.first_token_at <= until]
    return said(requests, until) + sum(one.prompt_tokens for one in first)


def computed_once(*words: str, burst: int, prompt: int, bursts: int) -> tuple[int, int]:
    """Prompt tokens computed for bursts of one prompt but for its last token, and how many of them
    are different.
    """
    run = run_of(
        f"workload.burst_size={burst}",
        "workload.arrivals=bursts",
        "workload.prompt_cv=0",
        f"workload.prompt_tokens={prompt}",
        f"workload.shared_prefix_tokens={prompt - 1}",
        "workload.shared_prefixes=1",
        *words,
        requests=burst * bursts,
    )
    return sum(run.copies[0].steps.prompt_tokens), prompt - 1 + len(run.served)
