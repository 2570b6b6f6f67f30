"""The real engine in a world of modelled seconds, and what the simulator does beside it.

All of the engine is real, its loop, scheduler, runner and a tiny decoder; only its clock is not: a
step takes the seconds of the step-time model. Prompts are those of the workload with tokens renamed
one to one, to what fits a small vocabulary, and a bias makes the model say the answer that the
workload has, so that whatever hits the prefix cache in one hits it in the other.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

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
from servekit.simulator.executor import SimulatedExecutor, Work
from servekit.simulator.record import Served
from servekit.simulator.run import Clients, simulate
from servekit.simulator.timing import timing
from servekit.spec.latency import step_model
from servekit.workload.arrival import Arrival, prompt
from servekit.workload.source import source
from tests.engine.tiny import tiny_decoder

REQUESTS = 40
SEED = 1

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

    def prepare(self, batch: Batch) -> Any:
        return self.runner.prepare(batch)

    def run(self, batch: Batch, prepared: Any = None) -> Sampled:
        """As it is planned now; what it shares with requests goes on."""
        self.batches.append(told(batch, list))
        rows = len(batch.decodes.ids)
        seen = 1 + sum(batch.decodes.starts) / rows if rows else 0.0
        chunks = [(len(row.tokens), row.start) for row in batch.others]
        outcome = self.runner.run(batch, prepared)
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
