"""The engine's loop: admit, plan, run, commit."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from servekit.engine.beside import Beside
from servekit.engine.deltas import deltas_of, step_deltas
from servekit.engine.flights import Flight, Flights
from servekit.engine.grammars import PATIENCE_S, Grammars
from servekit.engine.guard import Executor, report
from servekit.engine.heartbeat import BEAT_S
from servekit.engine.journal import plan_events, step_and_events
from servekit.engine.messages import (
    Abort,
    Beat,
    Delta,
    Deltas,
    Event,
    FromEngine,
    Pin,
    Stats,
    Stop,
    Submit,
    ToEngine,
)
from servekit.engine.step_log import StepLog
from servekit.errors import EngineError, ServekitError
from servekit.model.vocabulary import Vocabulary
from servekit.scheduler.request import Request
from servekit.scheduler.scheduler import Scheduler
from servekit.scheduler.stats import SchedulerStats

TOLD = [one.name for one in fields(SchedulerStats) if one.name in Stats.__struct_fields__]
"""What of the scheduler's numbers the server is told."""


class Inbox(Protocol):
    def __call__(self, wait_s: float | None, until: int | None = None) -> Iterable[ToEngine]:
        """All that has come; if nothing has, waits for it so long, None for ever, or until the
        descriptor can be read."""
        ...


class EngineCore:
    """Between a scheduler, an executor and two mailboxes; it has no socket.

    With a `device` thread, steps are run there, and requests and aborts are taken in meanwhile: who
    is refused learns it at once, however long the step. The scheduler is this thread's alone.

    With `in_flight` 2 the next step is planned, and its inputs laid out, while one runs. What it is
    planned on may come to be otherwise: then a row is of a request that has ended meanwhile, and
    what comes of it is thrown away.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        inbox: Inbox,
        outbox: Callable[[FromEngine], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        device: Beside[Any] | None = None,
        in_flight: int = 1,
        log: StepLog | None = None,
        kernel_compiles: Callable[[], int] = int,
    ) -> None:
        """`kernel_compiles`: how many there were since the engine is ready."""
        self.scheduler = scheduler
        self.executor = executor
        self.inbox = inbox
        self._outbox = outbox
        self.clock = clock
        self.spoke = clock()
        """When the server was last told anything."""
        self.flights = Flights(executor, in_flight, device, clock)
        self.log = log
        self.kernel_compiles = kernel_compiles
        self.grammars = Grammars()
        self.stopping = False
        self.idle = True
        self.latest: tuple[int, int, float] = (0, 0, 0.0)
        """Rows, tokens and seconds of the last step."""
        self.since = 0.0
        """When the step before ended, or somebody came to an idle engine."""
        self.events: list[Event] = []
        """What planning did to requests, of the batch that is planned next too."""
        self.ended: deque[tuple[int, int]] = deque()
        """Requests that the executor is to forget, each once a batch is over that it may be in."""

    def run(self) -> None:
        """Serves until it is told to stop; raises EngineError when it cannot go on."""
        try:
            while not self.stopping:
                self.step()
        finally:
            self.flights.abandon()

    def outbox(self, message: FromEngine) -> None:
        self.spoke = self.clock()
        self._outbox(message)

    def beat(self, step_s: float) -> None:
        """Says that the loop turns, if it has said nothing else for a while."""
        if self.clock() - self.spoke >= BEAT_S:
            self.outbox(Beat(step_s))

    def step(self) -> None:
        messages = self.inbox(self._patience(), self.grammars.fileno)
        if self.idle:
            self.since = self.clock()
        self.admit(messages)
        for request_id, constraint in self.grammars.done():
            self.executor.constrain(request_id, constraint)
            self.scheduler.release(request_id)
        if self.stopping:
            return
        self._plan()
        self.idle = not self.flights
        if self.idle:
            self.beat(0.0)
        else:
            self._commit(self.flights.land(self._listen))

    def _plan(self) -> None:
        """As many batches as may be under way, and as there is something for."""
        while self.flights.room:
            planned = self.clock()
            batch = self.scheduler.plan(planned)
            self.events += plan_events(self.scheduler, planned)
            if batch is None:
                return
            self.flights.launch(batch, self.events, planned)
            self.events = []

    def _listen(self, device: Beside[Any], step_s: float) -> None:
        """While a step runs, since `step_s`: until it is over, or somebody has come."""
        messages = self.inbox(BEAT_S, device.fileno())
        self.admit(messages)
        if messages and not self.stopping:
            self._plan()
        self.beat(step_s)

    def _commit(self, flight: Flight) -> None:
        """Takes in what came of a batch, and tells it."""
        step, events = step_and_events(flight, self.scheduler)
        batch, outcome = flight.batch, flight.outcome
        between = self._between(outcome.seconds, flight.ended)
        whole = replace(outcome, seconds=outcome.seconds + between)
        gains = self.scheduler.commit(batch, whole, self.clock())
        self.latest = (batch.num_rows, batch.num_tokens, step.seconds)
        while self.ended and self.ended[0][0] <= batch.id:
            self.executor.remove(self.ended.popleft()[1])
        ids, tokens, others = step_deltas(gains, outcome.logprobs, outcome.blamed)
        others = self._forget(others)
        self.outbox(Deltas(ids, tokens, others, self._stats(), step, events))
        if self.log is not None:
            self.log.note(batch, outcome, between)

    def _between(self, seconds: float, ended: float) -> float:
        """Seconds since the step before, beside those of this one, in which there was work.

        The scheduler is told of both together: a target for the time between tokens, or until the
        first, is the client's, who waits for the host as for the device. What the host does while
        a step runs is no part of it: 0 where the next step is there before the last one ends.
        """
        between = max(0.0, ended - self.since - seconds)
        self.since = ended
        return between

    def admit(self, messages: Iterable[ToEngine]) -> None:
        """Takes in requests and aborts; what begins or ends here is told at once."""
        deltas = [delta for message in messages for delta in self._admit(message)]
        deltas += deltas_of(self.scheduler.expire(self.clock()), {})
        if deltas:
            self.outbox(Deltas([], [], self._forget(deltas), self._stats()))

    def _admit(self, message: ToEngine) -> Sequence[Delta]:
        match message:
            case Submit():
                return [self._submit(message)]
            case Pin(prompt=prompt):
                self.scheduler.kv.pin(prompt)
            case Vocabulary():
                self.grammars.learn(message)
            case Abort(ids=ids):
                ends = [end for id in ids if (end := self.scheduler.abort(id)) is not None]
                return deltas_of(ends, {})
            case Stop():
                self.stopping = True
        return ()

    def _submit(self, message: Submit) -> Delta:
        """That it is let in, or why not."""
        retry_after_s = None
        try:
            self.executor.add(message.id, message.prompt, message.sampling)
            self._let_in(message)
        except ServekitError as refusal:
            error, code = refusal.message, refusal.code
            retry_after_s = refusal.retry_after_s
        except Exception as fault:
            error, code = report(fault), EngineError.code
        else:
            return Delta(message.id, [])
        return Delta(
            message.id,
            [],
            finish="error",
            error=error,
            error_code=code,
            retry_after_s=retry_after_s,
        )

    def _let_in(self, message: Submit) -> None:
        """Into the line, once its grammar is known; raises what says no to it."""
        grammar, now = message.sampling.grammar, self.clock()
        constraint = None if grammar is None else self.grammars.constraint(grammar)
        self.scheduler.add(_request(message, now))
        if constraint is not None:
            self.executor.constrain(message.id, constraint)
        elif grammar is not None:
            self.scheduler.hold(message.id, now + PATIENCE_S)
            self.grammars.ask(message.id, grammar)

    def _forget(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas as they are; the executor is to forget the requests that they end."""
        newest = self.flights.newest
        for delta in deltas:
            if delta.finish is None:
                continue
            if newest:
                self.ended.append((newest, delta.id))
            else:
                self.executor.remove(delta.id)
        return deltas

    def _patience(self) -> float:
        """How long the inbox may be waited for: not at all while there is something to compute."""
        if not self.idle:
            return 0.0
        deadline = self.scheduler.next_deadline
        return BEAT_S if deadline is None else min(BEAT_S, max(0.0, deadline - self.clock()))

    def _stats(self) -> Stats:
        now = self.scheduler.stats()
        rows, tokens, seconds = self.latest
        return Stats(
            batch_rows=rows,
            batch_tokens=tokens,
            step_s=seconds,
            kernel_compiles_total=self.kernel_compiles(),
            **{name: getattr(now, name) for name in TOLD},
        )


def _request(message: Submit, now: float) -> Request:
    sampling, caller = message.sampling, message.caller
    return Request(
        id=message.id,
        prompt=message.prompt,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_ids=frozenset(sampling.stop_token_ids),
        arrived=now,
        salt=caller.salt,
        priority=caller.priority,
        tenant=caller.tenant,
        slo_class=caller.slo_class,
    )
