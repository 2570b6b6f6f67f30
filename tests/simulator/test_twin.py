"""The simulator decides what the engine decides: the same requests, the same batches.

The engine here is the real one, its loop, scheduler, runner and a tiny decoder; only its clock is
not: a step takes the seconds of the step-time model. Both sides are given equal requests. The
engine's prompts are those of the workload with tokens renamed one to one, to what fits a small
vocabulary, and a bias makes the model say the answer that the workload has for it, so that
whatever hits the prefix cache in one hits it in the other.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import servekit.engine.guard
import servekit.simulator.replica
from servekit.config.schema import Config
from servekit.engine.assemble import assemble
from servekit.engine.core import EngineCore
from servekit.engine.messages import Abort, Caller, Delta, Deltas, Sampling, Stop, Submit
from servekit.engine.runner import Runner, Sampled
from servekit.scheduler.batch import Batch, Copies, Outcome
from servekit.scheduler.request import Request
from servekit.scheduler.scheduler import Scheduler
from servekit.scheduler.settings import StepTime
from servekit.scheduler.stats import SchedulerStats
from servekit.simulator.executor import SimulatedExecutor, Work
from servekit.simulator.record import Served
from servekit.simulator.run import Clients, simulate
from servekit.simulator.timing import timing
from servekit.spec.latency import step_model
from servekit.workload.arrival import Arrival, prompt
from servekit.workload.source import source
from tests.conftest import tiny_config, tiny_shape
from tests.engine.tiny import tiny_decoder

REQUESTS = 60
SEED = 1
VOCABULARY = 1000
Told = tuple[Any, ...]
Tokens = Callable[[Iterable[int]], list[int]]


def told(batch: Batch, tokens: Tokens) -> Told:
    """All that a batch says, as values that nothing changes any more."""
    ids, starts, known, tables = batch.decodes
    held = [tuple(map(tuple, own)) for own in tables]
    others = [
        (row.request_id, row.start, tokens(row.tokens), row.samples, *map(tuple, row.tables))
        for row in batch.others
    ]
    copies = tuple(map(tuple, batch.copies))
    return batch.id, ids.copy(), starts.copy(), tokens(known), held, others, copies


@dataclass
class Names:
    """The words of a workload by small numbers, in the order in which they are first said."""

    given: dict[int, int] = field(default_factory=dict)

    def __call__(self, tokens: Iterable[int]) -> list[int]:
        return [self.given.setdefault(token, len(self.given)) for token in tokens]


class World:
    """The engine's inbox, outbox, clock, executor and device thread. Time passes by waiting for
    somebody to come, and by steps; while one runs, the engine hears who comes.
    """

    def __init__(self, config: Config, runner: Runner, scheduler: Scheduler, *, drawn: bool):
        work, room = config.workload, config.model.max_model_len
        self.clients = Clients(source(work, max_model_len=room, seed=SEED), REQUESTS)
        self.runner, self.scheduler = runner, scheduler
        self.times: StepTime = timing(config, step_model(config))
        self.vocabulary = config.model.shape.vocab_size if drawn else None
        self.patience = work.patience_s
        self.leaving: deque[tuple[float, int]] = deque()
        self.names = Names()
        self.now = self.ends = 0.0
        self.outcome: Sampled
        self.batches: list[Told] = []
        self.arrivals: dict[int, Arrival] = {}
        self.requests: dict[int, Request] = {}

    def clock(self) -> float:
        return self.now

    # inbox and outbox

    def receive(self, wait_s: float | None, until: int | None = None) -> list[Any]:
        """Who comes next, with all who come at the same time; not later than the running step."""
        limit = self.now if wait_s == 0 else math.inf if until is None else self.ends
        patience = self.leaving[0][0] if self.leaving else math.inf
        coming = min(self.clients.next_at, patience)
        if coming == math.inf and limit == math.inf:
            return [Stop()]
        self.now = max(self.now, min(coming, limit))
        messages: list[Any] = []
        while self.leaving and self.leaving[0][0] <= self.now:
            id = self.leaving.popleft()[1]
            if id in self.arrivals and self.requests[id].first_token_at is None:
                messages.append(Abort([id]))
        while self.clients.next_at <= self.now:
            messages.append(self.submit(*self.clients.next()))
        return messages

    def submit(self, id: int, arrival: Arrival) -> Submit:
        self.arrivals[id] = arrival
        if self.patience is not None:
            self.leaving.append((arrival.at + self.patience, id))
        bias: dict[int, float] = {}
        if self.vocabulary is None:
            asked = self.names(arrival.prompt)
            bias[self.names([arrival.answer])[0]] = 1e4
        else:
            asked = prompt(arrival, self.vocabulary)
        words = Sampling(arrival.output_tokens, seed=0, temperature=0.0, logit_bias=bias)
        tenant = arrival.tenant
        caller = Caller(tenant, tenant.encode(), arrival.priority, arrival.slo_class)
        return Submit(id, asked, words, caller)

    def deliver(self, message: Any) -> None:
        assert isinstance(message, Deltas)
        for delta in message.all():
            if delta.id in self.scheduler.requests:
                self.requests.setdefault(delta.id, self.scheduler.requests[delta.id])
            if delta.finish is not None:
                arrival = self.arrivals.pop(delta.id)
                served = served_of(arrival, self.requests.get(delta.id), delta, self.now)
                self.clients.ended(delta.id, arrival, served, self.now)

    # executor

    def add(self, id: int, tokens: list[int], sampling: Sampling) -> None:
        self.runner.add(id, tokens, sampling)

    def remove(self, id: int) -> None:
        self.runner.remove(id)

    def copy(self, copies: Copies) -> None:
        self.runner.copy(copies)

    def probe(self) -> None:
        self.runner.probe()

    def run(self, batch: Batch) -> Sampled:
        """As it is planned now; what it shares with requests goes on."""
        self.batches.append(told(batch, list))
        rows = len(batch.decodes.ids)
        seen = 1 + sum(batch.decodes.starts) / rows if rows else 0.0
        chunks = [(len(row.tokens), row.start) for row in batch.others]
        outcome = self.runner.run(batch)
        assert not outcome.failed
        self.now += self.times.seconds(rows, seen, chunks)
        return outcome

    # device

    def start(self, work: Callable[[], Sampled]) -> None:
        begun = self.now
        self.outcome = work()
        self.ends, self.now = self.now, begun

    @property
    def done(self) -> bool:
        return self.now >= self.ends

    def fileno(self) -> int:
        return 0

    def result(self) -> Sampled:
        return self.outcome


def served_of(arrival: Arrival, request: Request | None, delta: Delta, now: float) -> Served:
    ends: dict[str, Any] = {"length": "finished", "abort": "left", "error": "refused"}
    return Served(
        at=arrival.at,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=0 if request is None else len(request.output),
        asked_tokens=arrival.output_tokens,
        tenant=arrival.tenant,
        priority=arrival.priority,
        slo_class=arrival.slo_class,
        copy=0,
        end=ends[str(delta.finish)],
        admitted_at=request and request.admitted_at,
        first_token_at=request and request.first_token_at,
        finished_at=now,
        cached_tokens=0 if request is None else request.cached_tokens,
        preemptions=0 if request is None else request.preemptions,
        code=delta.error_code or "",
        retry_after_s=delta.retry_after_s,
    )


def engine_of(config: Config, monkeypatch: pytest.MonkeyPatch, *, drawn: bool = False) -> World:
    """The engine's own run, to the end."""
    scheduler, runner, _ = assemble(config, tiny_decoder(config.model.shape), lambda _: None)
    world = World(config, runner, scheduler, drawn=drawn)
    measured = SimpleNamespace(perf_counter=world.clock)
    monkeypatch.setattr(servekit.engine.guard, "time", measured)
    device: Any = world
    core = EngineCore(scheduler, world, world.receive, world.deliver, world.clock, device=device)
    core.run()
    scheduler.check()
    assert not scheduler.busy
    return world


def simulated(
    config: Config, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Told], list[Served]]:
    batches: list[Told] = []

    class Watched(SimulatedExecutor):
        def run(self, batch: Batch) -> tuple[Outcome, Work]:
            batches.append(told(batch, tokens))
            return super().run(batch)

    monkeypatch.setattr(servekit.simulator.replica, "SimulatedExecutor", Watched)
    run = simulate(config, requests=REQUESTS, seed=SEED, foreseen=True)
    return batches, run.served


def rounded(served: Served | None) -> tuple[Any, ...]:
    """Sums of the same times in another order differ in their last bits."""
    assert served is not None
    return tuple(round(value, 9) if isinstance(value, float) else value for value in served)


Happened = Callable[[SchedulerStats, list[Served]], bool]


class Case(NamedTuple):
    groups: dict[str, dict[str, Any]]
    happened: Happened
    """What the case is there for; it must not pass because nothing of the kind came up."""


SLOW = {"bandwidth_gb_s": 0.05, "bf16_tflops": 0.0005}
"""A device on which a step's time depends on its tokens, even of a tiny model."""
SMALL = {"capacity_tokens": 256, "block_size": 8}
STARTS = {"shared_prefix_tokens": 21, "shared_prefixes": 4}
TURNS = {"turns": 2.5, "think_s": 0.2, "request_rate": 8.0, "prompt_tokens": 70}
PACED = {"order": "deadline", "decode_slowdown": 1.5, "max_step_ms": 12.0}


def waited(stats: SchedulerStats, served: list[Served]) -> bool:
    return any(one.queue_s is not None and one.queue_s > 0.1 for one in served)


def preempted(stats: SchedulerStats, served: list[Served]) -> bool:
    return stats.preemptions_total > 2


def took_over(stats: SchedulerStats, served: list[Served]) -> bool:
    return stats.takeovers_total > 0


def hit(stats: SchedulerStats, served: list[Served]) -> bool:
    return stats.prefix_hit_tokens_total > 0.1 * stats.prefix_query_tokens_total


def refused(code: str) -> Happened:
    return lambda stats, served: {one.code for one in served} == {"", code}


CASES = {
    "light": Case(
        {"workload": {"request_rate": 3.0}}, lambda stats, served: not waited(stats, served)
    ),
    "busy": Case({}, waited),
    "bursts": Case({"workload": {"arrivals": "bursts", "burst_size": 7}}, waited),
    "closed": Case({"workload": {"arrivals": "closed", "concurrency": 11, **STARTS}}, hit),
    "short of blocks": Case({"kv": SMALL}, preempted),
    "cheapest victim": Case(
        {"kv": SMALL, "scheduler": {"victim": "cheapest", "max_skip_ahead": 16}}, preempted
    ),
    "reserve predicted": Case({"kv": SMALL, "scheduler": {"reserve": "predicted"}}, waited),
    "reserve worst case": Case(
        {"kv": SMALL, "scheduler": {"reserve": "worst_case"}},
        lambda stats, served: stats.preemptions_total == 0,
    ),
    "swapped": Case(
        {"kv": {**SMALL, "offload_gib": 1e-3}}, lambda stats, served: stats.swaps_total > 2
    ),
    "shared starts": Case({"workload": STARTS, "kv": {"block_size": 8}}, hit),
    "turns": Case({"workload": TURNS, "kv": {"block_size": 8}}, hit),
    "turns, short of blocks": Case({"workload": TURNS, "kv": SMALL}, preempted),
    "turns without a prefix cache": Case(
        {"workload": TURNS, "kv": {"prefix_caching": False}},
        lambda stats, served: stats.prefix_hit_tokens_total == 0,
    ),
    "static": Case({"scheduler": {"policy": "static"}}, waited),
    "priority": Case(
        {
            "workload": {"priorities": {"0": 1.0, "5": 2.0}},
            "scheduler": {"order": "priority", "aging_s": 1.0},
        },
        took_over,
    ),
    "shortest prefill": Case({"scheduler": {"order": "shortest_prefill", "aging_s": 1.0}}, waited),
    "longest prefix": Case(
        {"workload": STARTS, "scheduler": {"order": "longest_prefix", "aging_s": 1.0}}, hit
    ),
    "fair": Case(
        {
            "workload": {"tenants": {"a": 1.0, "b": 3.0}},
            "scheduler": {"order": "fair", "tenant_weights": {"b": 2.0}},
        },
        waited,
    ),
    "two pools": Case(
        {"workload": {"batch_share": 0.5}, "scheduler": {"order": "two_pool"}}, took_over
    ),
    "paced": Case({"slo": {"ttft_ms": 500.0}, "scheduler": PACED}, waited),
    "refused what would be late": Case(
        {"slo": {"ttft_ms": 300.0, "admission": "enforce"}, "scheduler": PACED},
        refused("slo_unattainable"),
    ),
    "refused by a full queue": Case({"scheduler": {"max_num_waiting": 3}}, refused("queue_full")),
    "impatient": Case(
        {"workload": {"patience_s": 0.5}},
        lambda stats, served: {one.end for one in served} == {"finished", "left"},
    ),
    "windows": Case(
        {
            "model": {
                "shape": tiny_shape(
                    layers=6, sliding_window=8, full_attention_layers=(5,), vocab_size=VOCABULARY
                )
            },
            "kv": {"hybrid": True, "block_size": 4, "capacity_tokens": 400},
        },
        waited,
    ),
}
BASE: dict[str, dict[str, Any]] = {
    "model": {"shape": tiny_shape(vocab_size=VOCABULARY)},
    "hardware": SLOW,
    "workload": {"request_rate": 25.0, "prompt_tokens": 40, "output_tokens": 20},
}


def config_of(case: Case) -> Config:
    groups = {**BASE, **case.groups}
    groups["workload"] = {**BASE["workload"], **groups["workload"]}
    return tiny_config(**groups)


@pytest.mark.parametrize("name", CASES)
def test_engine_and_simulator_plan_the_same_batches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step for step: requests, positions, tokens, block tables, copies; and when."""
    case = CASES[name]
    engine = engine_of(config_of(case), monkeypatch)
    batches, served = simulated(config_of(case), engine.names, monkeypatch)
    assert case.happened(engine.scheduler.stats(), served)
    for ours, theirs in zip(engine.batches, batches, strict=False):
        assert ours == theirs, f"seed {SEED}"
    assert len(engine.batches) == len(batches)
    assert list(map(rounded, engine.clients.served)) == list(map(rounded, served))


def test_what_the_model_says_by_itself_changes_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts as a load generator has them, answers as the model has them."""
    config = config_of(Case({"workload": STARTS, "kv": SMALL}, preempted))
    engine = engine_of(config, monkeypatch, drawn=True)
    batches, served = simulated(config, engine.names, monkeypatch)
    assert preempted(engine.scheduler.stats(), served)
    assert [shape_of(batch) for batch in engine.batches] == [shape_of(batch) for batch in batches]


def shape_of(batch: Told) -> tuple[Any, ...]:
    """All of it but the tokens themselves."""
    id, ids, starts, _, tables, others, copies = batch
    rows = [(of, start, len(tokens), *rest) for of, start, tokens, *rest in others]
    return id, ids, starts, tables, rows, copies
