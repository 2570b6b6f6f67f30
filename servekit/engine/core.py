"""The engine's loop: admit, plan, run, commit."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from servekit.engine.guard import Executor, report, run_guarded
from servekit.engine.messages import (
    Abort,
    Delta,
    Deltas,
    FromEngine,
    Stats,
    Stop,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from servekit.errors import EngineError, ServekitError
from servekit.scheduler.batch import Batch, Progress
from servekit.scheduler.request import Request
from servekit.scheduler.scheduler import Scheduler


class Inbox(Protocol):
    def __call__(self, wait_s: float | None) -> Iterable[ToEngine]:
        """All that has come; if nothing has, waits for it so long, None for ever."""
        ...


class EngineCore:
    """Between a scheduler, an executor and two mailboxes; it has no thread and no socket."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        inbox: Inbox,
        outbox: Callable[[FromEngine], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.inbox = inbox
        self.outbox = outbox
        self.clock = clock
        self.stopping = False
        self.idle = True

    def run(self) -> None:
        """Serves until it is told to stop; raises EngineError when it cannot go on."""
        while not self.stopping:
            self.step()

    def step(self) -> None:
        self.admit(self.inbox(self._patience()))
        if self.stopping:
            return
        batch = self.scheduler.plan(self.clock())
        self.idle = batch is None
        if batch is not None:
            started = self.clock()
            outcome = run_guarded(self.executor, batch)
            progress = self.scheduler.commit(batch, outcome, self.clock())
            deltas = self._ended(_deltas(progress, outcome.logprobs))
            self.outbox(Deltas(deltas, self._stats(batch, self.clock() - started)))

    def admit(self, messages: Iterable[ToEngine]) -> None:
        """Takes in requests and aborts; what ends here is told at once."""
        deltas = [delta for message in messages for delta in self._admit(message)]
        deltas += self._ended(_deltas(self.scheduler.expire(self.clock()), {}))
        if deltas:
            self.outbox(Deltas(deltas, self._stats(None, 0.0)))

    def _admit(self, message: ToEngine) -> Sequence[Delta]:
        match message:
            case Submit():
                return self._submit(message)
            case Abort(ids=ids):
                ends = [end for id in ids if (end := self.scheduler.abort(id)) is not None]
                return self._ended(_deltas(ends, {}))
            case Stop():
                self.stopping = True
        return ()

    def _submit(self, message: Submit) -> Sequence[Delta]:
        try:
            self.executor.add(message.id, message.prompt, message.sampling)
            self.scheduler.add(_request(message, self.clock()))
        except ServekitError as refusal:
            error, code = refusal.message, refusal.code
        except Exception as fault:
            error, code = report(fault), EngineError.code
        else:
            return ()
        self.executor.remove(message.id)
        return [Delta(message.id, [], finish="error", error=error, error_code=code)]

    def _ended(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas as they are, once the executor has forgotten the requests that they end."""
        for delta in deltas:
            if delta.finish is not None:
                self.executor.remove(delta.id)
        return deltas

    def _patience(self) -> float | None:
        """How long the inbox may be waited for: not at all while there is something to compute."""
        if not self.idle:
            return 0.0
        deadline = self.scheduler.next_deadline
        return None if deadline is None else max(0.0, deadline - self.clock())

    def _stats(self, batch: Batch | None, step_s: float) -> Stats:
        now = self.scheduler.stats()
        return Stats(
            running=now.running,
            waiting=now.waiting,
            waiting_tokens=now.waiting_tokens,
            blocks_total=now.blocks_total,
            blocks_free=now.blocks_free,
            blocks_cached=now.blocks_cached,
            block_size=now.block_size,
            batch_rows=len(batch.rows) if batch else 0,
            batch_tokens=batch.num_tokens if batch else 0,
            step_s=step_s,
            steps_total=now.steps_total,
            preemptions_total=now.preemptions_total,
            prefix_query_tokens_total=now.prefix_query_tokens_total,
            prefix_hit_tokens_total=now.prefix_hit_tokens_total,
        )


def _request(message: Submit, now: float) -> Request:
    sampling = message.sampling
    return Request(
        id=message.id,
        prompt=message.prompt,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_ids=frozenset(sampling.stop_token_ids),
        arrived=now,
    )


def _deltas(progress: Iterable[Progress], logprobs: dict[int, list[TokenLogprobs]]) -> list[Delta]:
    return [
        Delta(
            id=gain.request_id,
            tokens=gain.tokens,
            logprobs=_aligned(logprobs.get(gain.request_id), gain.tokens),
            finish=gain.finish,
            stop_token=gain.stop_token,
            error=gain.error,
            error_code=EngineError.code if gain.finish == "error" else None,
            cached_tokens=gain.cached_tokens,
            preemptions=gain.preemptions,
        )
        for gain in progress
    ]


def _aligned(logprobs: list[TokenLogprobs] | None, tokens: list[int]) -> list[TokenLogprobs] | None:
    return None if logprobs is None else logprobs[: len(tokens)]
