"""Reports and runs made by hand, for what is said about them."""

import math
from dataclasses import replace
from typing import Any, Literal

from servekit.config.schema import Config
from servekit.simulator.columns import Gaps, Seats, SeatState, Steps
from servekit.simulator.pages.metrics import METRICS, Metric
from servekit.simulator.record import (
    Class,
    Comparison,
    CopyRecord,
    Difference,
    Estimate,
    Latency,
    Report,
    Run,
    Series,
    Served,
    Target,
)


def about(value: float, share: float = 0.05) -> Estimate:
    """An estimate that is `share` of its value to either side."""
    return Estimate(value, value * (1 - share), value * (1 + share))


def latency(p50: float) -> Latency:
    return Latency(about(1.2 * p50), about(p50), about(3 * p50), about(5 * p50), 6000)


def target(name: Literal["ttft", "tpot"], value: Estimate, n: int = 6000, late: int = 0) -> Target:
    """At p95: a second to the first token, 50 ms for each after it."""
    return Target(name, {"ttft": 1.0, "tpot": 0.05}[name], 95.0, value, n, late)


SERIES = Series(
    at=tuple(float(place) for place in range(1, 41)),
    running=tuple(80 + 20 * math.sin(place / 5) for place in range(40)),
    waiting=tuple(float(max(0, place - 30)) for place in range(40)),
    kv_share=tuple(0.2 + place / 100 for place in range(40)),
    batch_tokens=tuple(200 + 50 * math.cos(place / 3) for place in range(40)),
    output_tokens_per_s=tuple(1600.0 + place for place in range(40)),
    goodput_per_s=tuple(7.9 for _ in range(40)),
)

PLAIN = Report(
    name="chat",
    seeds=(0, 1, 2),
    requests=2000,
    simulated_s=250.3,
    wall_s=3.21,
    warm_up_s=0.0,
    ttft=latency(0.031),
    tpot=latency(0.0109),
    itl=latency(0.0094),
    e2e=latency(2.3),
    queue=latency(0.002),
    targets=(
        target("ttft", about(0.113)),
        target("tpot", about(0.013)),
    ),
    offered_per_s=about(8.0),
    served_per_s=about(7.95),
    refused_per_s=Estimate(0.0, 0.0, 0.0),
    left_per_s=Estimate(0.0, 0.0, 0.0),
    output_tokens_per_s=about(1678.0),
    total_tokens_per_s=about(10919.0),
    goodput_per_s=about(7.9),
    goodput_share=Estimate(0.988, 0.981, 0.995),
    attained_share=Estimate(0.988, 0.981, 0.995),
    refused_share=Estimate(0.0, 0.0, 0.0),
    left_share=Estimate(0.0, 0.0, 0.0),
    kv_mean_share=about(0.22),
    kv_max_share=0.41,
    hit_share=about(0.31),
    misses={"first_seen": 0.5, "evicted": 0.1, "unaligned": 0.09, "salt": 0.0},
    running=about(85.2),
    waiting=about(0.3),
    batch_tokens=about(190.0),
    batch_decodes=about(80.0),
    step_s=about(0.0121),
    busy_share=about(0.93),
    empty_seat_share=about(0.9),
    idle_seat_share=about(0.01),
    padding_share=about(0.02),
    preempted_share=about(0.001),
    wasted_share=about(0.0005),
    preemptions=6,
    swaps=0,
    preempted_tokens=800.0,
    fairness=None,
    tenants=(),
    classes=(Class(0, "interactive", 6000, 5980, 0, 0, latency(0.002), latency(0.031)),),
    saturated=False,
    queue_growth_per_s=Estimate(0.0, -0.1, 0.1),
    counts={"finished": 5980, "refused": 0, "left": 0, "unfinished": 20},
    refused={},
    retry_after_s=None,
    series=SERIES,
)


def report(**changes: Any) -> Report:
    return replace(PLAIN, **changes)


def run(config: Config, *, static: bool, seats: int = 8, requests: int = 60) -> Run:
    """Answers of 3 to 45 tokens through `seats` seats, all there from the start.

    A step that computes prompts takes 30 ms and others 10 ms; with `static` nobody is seated
    before all seats are empty.
    """
    left = [3 + 38 * (number * 7 % 11 == 0) + number % 5 for number in range(requests)]
    asked, queue, table = list(left), list(range(requests)), [-1] * seats
    served: dict[int, Served] = {}
    picture, steps, gaps, now = Seats(capacity=seats), Steps(), Gaps(), 0.0
    while queue or max(table) >= 0:
        fresh: set[int] = set()
        closed = static and max(table) >= 0
        for place in range(seats):
            if table[place] < 0 and queue and not closed:
                table[place] = queue.pop(0)
                fresh.add(table[place])
                served[table[place]] = Served(
                    0.0, 100, asked[table[place]], asked[table[place]], "", 0, "interactive", 0,
                    "finished", admitted_at=now,
                )  # fmt: skip
        took = 0.03 if fresh else 0.01
        look(picture, table, fresh, now, took)
        now += took
        decodes = sum(who >= 0 and who not in fresh for who in table)
        stepped(steps, gaps, now, took, decodes, len(fresh), len(queue))
        for place, who in enumerate(table):
            if who in fresh:
                served[who] = served[who]._replace(first_token_at=now)
            left[who] -= who >= 0
            if who >= 0 and not left[who]:
                served[who] = served[who]._replace(finished_at=now)
                table[place] = -1
    record = CopyRecord(steps, gaps, blocks_total=1000)
    return Run(config, 0, [served[who] for who in sorted(served)], [record], picture, now, 0.01)


def look(picture: Seats, table: list[int], fresh: set[int], now: float, took: float) -> None:
    picture.at.append(now)
    picture.seconds.append(took)
    picture.requests.append(list(table))
    picture.states.append(
        [
            SeatState.EMPTY if who < 0 else SeatState.PREFILL if who in fresh else SeatState.DECODE
            for who in table
        ]
    )
    picture.tokens.append([100 * (who in fresh) or int(who >= 0) for who in table])


def stepped(
    steps: Steps, gaps: Gaps, now: float, took: float, decodes: int, prompts: int, waiting: int
) -> None:
    columns = {
        "at": now, "seconds": took, "decodes": decodes, "prompt_tokens": 100 * prompts,
        "prompts": prompts, "running": decodes + prompts, "waiting": waiting,
        "blocks_used": 10 * (decodes + prompts), "preempted": 0, "refused": 0,
    }  # fmt: skip
    for name, value in columns.items():
        getattr(steps, name).append(value)
    if decodes:
        gaps.at.append(now)
        gaps.seconds.append(took)
        gaps.count.append(decodes)


def comparison(config: Config) -> Comparison:
    """Static batches against continuous ones, with what such runs would report."""
    slow = report(
        output_tokens_per_s=about(400.0), batch_decodes=about(3.1), step_s=about(0.0121),
        idle_seat_share=about(0.6), ttft=latency(0.9), goodput_per_s=about(2.0),
    )  # fmt: skip
    fast = report(output_tokens_per_s=about(1000.0), batch_decodes=about(7.6))
    differences = tuple(apart(metric, slow, fast) for metric in METRICS if metric.of(slow))
    rule = config.scheduler.model_copy(update={"policy": "static"})
    static = config.model_copy(update={"scheduler": rule})
    runs = (run(static, static=True), run(config, static=False))
    names = "static", "continuous"
    more = {each.key: names[each.estimate.value > 0] for each in differences if each.is_clear}
    less = {key: names[name == "static"] for key, name in more.items()}
    return Comparison("scheduler", names, (slow, fast), ((), differences), more, less, runs)


def apart(metric: Metric, first: Report, second: Report) -> Difference:
    """Of `second` from `first`, as if each seed had said nearly the same."""
    before, after = metric.of(first), metric.of(second)
    assert before is not None
    assert after is not None
    difference = (after.value - before.value) / metric.scale
    found = Estimate(difference, difference - abs(difference) / 9, difference + abs(difference) / 9)
    relative = (after.value - before.value) / before.value if before.value else math.nan
    return Difference(metric.key, found, relative, is_clear=difference != 0)
