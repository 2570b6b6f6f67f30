"""A generation: one HTTP request, one engine request an answer, one stream of pieces.

    job ─submit▶ engine requests ─deltas▶ one queue ─text, stops▶ pieces ▶ chunks or answer

Leaving the `async with` early, for whatever reason, aborts what still runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import msgspec

from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import Caller, Delta, Ready, Sampling, Stats
from servekit.errors import (
    EngineError,
    Overloaded,
    ServekitError,
    from_code,
)
from servekit.server.accounts import Bill, Used
from servekit.server.deadline import missed
from servekit.server.idle import Idle
from servekit.server.limits import SEEDS
from servekit.server.running import RequestStream, Running, Taken, timings_of, used_by
from servekit.server.text import Answer, Piece
from servekit.server.timing import spent_before
from servekit.server.tracing import CURRENT, tell
from servekit.server.wire import PromptTokensDetails, Usage
from servekit.telemetry.metrics import Metrics, Operation
from servekit.telemetry.traces import Trace


class Engine(Protocol):
    """What the server needs of an engine: `engine.client` is one, a fake in a test another."""

    @property
    def state(self) -> str: ...
    @property
    def info(self) -> Ready | None: ...
    @property
    def stats(self) -> Stats | None: ...
    @property
    def heartbeat(self) -> Heartbeat: ...
    @property
    def num_open(self) -> int: ...
    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller) -> RequestStream: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate: `n` answers to each prompt, every prompt with its own limits."""

    operation: Operation
    prompts: list[tuple[list[int], Sampling]]
    n: int
    new_answer: Callable[[], Answer]
    arrived: float
    caller: Caller
    deadline: float | None = None
    """Seconds on the clock of `arrived`; then it is given up."""

    @property
    def size(self) -> int:
        return len(self.prompts) * self.n


def failure(delta: Delta) -> ServekitError:
    """What the engine says of a failed request, as an error of ours; without a code: our fault."""
    message = delta.error or "the engine gave up this request without saying why"
    error = from_code(delta.error_code or EngineError.code, message)
    error.retry_after_s = delta.retry_after_s
    if isinstance(error, Overloaded) and error.retry_after_s is None:
        error.retry_after_s = 1.0
    return error


@dataclass(slots=True, eq=False)
class Generation:
    """Runs a job; `pieces` says what each answer gained, `usage` what it took."""

    job: Job
    engine: Engine
    metrics: Metrics
    bill: Bill
    served: Callable[[float], None]
    """Hears when the first token came, on the clock of `job.arrived`."""
    trace: Trace | None = field(default_factory=CURRENT.get)
    running: list[Running] = field(default_factory=list)
    _inbox: list[tuple[int, Delta] | Exception] = field(default_factory=list)
    _heard: asyncio.Event = field(default_factory=asyncio.Event)
    _alarm: asyncio.TimerHandle | None = None
    _idle: Idle | None = None
    _ended_by: str | None = None

    async def __aenter__(self) -> Self:
        try:
            self._submit_all()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._idle is not None:
            self._idle.stop()
        unfinished = [one for one in self.running if not one.answer.finished]
        for one in unfinished:
            one.stream.abort()
        settled = self.bill.settle(self._used(), self._report(error, len(unfinished)))
        # an error is told once its line is written; who is gone is not waited for
        if settled is not None and isinstance(error, Exception):
            await asyncio.gather(settled, return_exceptions=True)

    def end(self, error: ServekitError, reason: str) -> None:
        """Whoever consumes `pieces` gets `error` next: the server is going down."""
        self._ended_by = reason
        self._hear(error)

    async def let_in(self) -> None:
        """Returns once the engine has let all of the job in; raises what it says against it.

        The engine says so before it computes anything, so a stream's status is still open then.
        """
        while True:
            for item in self._inbox:
                if isinstance(item, Exception):
                    raise item
                if item[1].finish in ("error", "abort"):
                    raise failure(item[1])
            if len({item[0] for item in self._inbox if isinstance(item, tuple)}) == self.job.size:
                return
            self._heard.clear()
            await self._heard.wait()

    async def pieces(self, idle_s: float | None = None) -> AsyncIterator[list[tuple[int, Piece]]]:
        """All that has come since the last time, at least one piece, by the answer's index.

        With `idle_s`, nothing whenever nothing has come for so many seconds. Raises what the engine
        or `end` says; other answers of the job are given up with it.
        """
        idle = self._idle = None if idle_s is None else Idle(idle_s, self._heard.set)
        open_answers = len(self.running)
        while open_answers:
            if not self._inbox:
                await self._heard.wait()
            self._heard.clear()
            items, self._inbox = self._inbox, []
            said = []
            for item in items:
                if isinstance(item, Exception):
                    raise item
                piece = self._take(*item)
                if piece.says_something:
                    said.append((item[0], piece))
                open_answers -= piece.finish is not None
            if not open_answers and (settled := self.bill.settle(self._used(), None)):
                await settled
            if said or (idle is not None and idle.over):
                yield said
                if idle is not None:
                    idle.note()

    def _submit_all(self) -> None:
        if self.job.deadline is not None:
            self._watch_deadline(self.job.deadline)
        for prompt, sampling in self.job.prompts:
            for choice in range(self.job.n):
                own = msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % SEEDS)
                stream = self.engine.submit(prompt, own, self.job.caller)
                stream.listen(partial(self._hear_delta, len(self.running)))
                self.running.append(Running(stream, self.job.new_answer(), len(prompt)))

    def _watch_deadline(self, deadline: float) -> None:
        """Raises DeadlineExceeded if it has passed, and sees to it that it is said when it does."""
        error, left_s = missed(deadline, self.job.arrived), deadline - time.monotonic()
        if left_s <= 0:
            raise error
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(left_s, self.end, error, error.code)

    def usage(self) -> Usage:
        """A prompt counts once, however many answers it got."""
        prompt = sum(len(ids) for ids, _ in self.job.prompts)
        cached = sum(one.cached_tokens for one in self.running[:: self.job.n])
        completion = sum(one.answer.completion_tokens for one in self.running)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))

    def taken(self) -> Taken:
        return Taken(self.usage(), timings_of(self.running, self.job.arrived))

    def _used(self) -> Used:
        return used_by(self.running, self.job.n, self.job.arrived)

    def _hear_delta(self, index: int, heard: Delta | Exception) -> None:
        if isinstance(heard, Delta):
            if heard.finish not in ("error", "abort"):
                self.bill.let_in = self.running[index].let_in = True
            self._hear((index, heard))
        else:
            self._hear(heard)

    def _hear(self, item: tuple[int, Delta] | Exception) -> None:
        self._inbox.append(item)
        self._heard.set()

    def _take(self, index: int, delta: Delta) -> Piece:
        one = self.running[index]
        if one.answer.finished:
            return Piece("")
        if delta.finish in ("error", "abort"):
            raise failure(delta)
        now = time.monotonic()
        one.note(delta)
        if delta.tokens:
            self._saw_tokens(one, len(delta.tokens), now)
            self.bill.spend(len(delta.tokens))
        piece = one.answer.take(delta)
        if piece.finish is not None:
            one.finish = piece.finish
            if delta.finish is None:
                one.stream.abort()
            self._complete(one, piece.finish)
        return piece

    def _saw_tokens(self, one: Running, count: int, now: float) -> None:
        if one.first_at is not None:
            self.metrics.inter_token.record((now - one.last_at) / count, count)
            one.last_at = now
            return
        if all(other.first_at is None for other in self.running):
            self.metrics.first_token(self.job.operation, now - self.job.arrived)
            self.served(now)
        one.first_at = one.last_at = now
        if (spent := spent_before(one)) is not None:
            self.metrics.prefilled(one.prompt_tokens, now - self.job.arrived, spent)

    def _complete(self, one: Running, finish: str) -> None:
        first = one.first_at
        self.metrics.answer(
            self.job.operation,
            finish,
            one.answer.completion_tokens,
            one.decode_s,
            prompt_tokens=one.prompt_tokens,
            ttft_s=None if first is None else first - self.job.arrived,
            preemptions=one.preemptions,
        )

    def _report(self, error: BaseException | None, unfinished: int) -> str | None:
        """The code of the error."""
        used = self._used()
        self.metrics.tokens(
            prompt=used.prompt_tokens,
            cached=used.cached_tokens,
            generated=used.completion_tokens,
        )
        if isinstance(error, ServekitError):
            code: str | None = error.code
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            code = "client_disconnected"
        else:
            code = None if error is None else EngineError.code
        if unfinished and code is not None:
            self.metrics.aborted(self._ended_by or code, unfinished)
        now = time.monotonic()
        self.metrics.request(self.job.operation, now - self.job.arrived, code)
        tell(self, code, now)
        return code if code is None or self._ended_by is None else self._ended_by
