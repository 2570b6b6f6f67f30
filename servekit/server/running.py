"""One engine request of a job, and what all of them took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from servekit.engine.messages import Delta, Event
from servekit.server.accounts import Used
from servekit.server.text import Answer
from servekit.server.wire import Timings, Usage


class RequestStream(Protocol):
    """One engine request."""

    def listen(self, hear: Callable[[Delta | Exception], None]) -> None:
        """`hear` gets its deltas in order, up to the one with `finish`, or what went wrong."""
        ...

    def abort(self) -> None: ...


@dataclass(slots=True)
class Running:
    """One engine request and the answer it feeds."""

    stream: RequestStream
    answer: Answer
    prompt_tokens: int
    let_in: bool = False
    finish: str | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None
    first_at: float | None = None
    last_at: float = 0.0
    events: list[Event] = field(default_factory=list)
    number: int = field(default_factory=count().__next__)
    """No other has it."""

    @property
    def decode_s(self) -> float:
        return 0.0 if self.first_at is None else self.last_at - self.first_at

    def note(self, delta: Delta) -> None:
        """What the engine says beside the tokens."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.preemptions = max(self.preemptions, delta.preemptions)
        self.events += delta.events
        if delta.queue_s is not None:
            self.queue_s, self.prefill_s = delta.queue_s, delta.prefill_s


@dataclass(frozen=True, slots=True)
class Taken:
    """What a job took, for whoever words the answer."""

    usage: Usage
    timings: Timings


def timings_of(running: Sequence[Running], arrived: float) -> Timings:
    """Of the answer that came last, on the clock of `arrived`; counts are of all."""
    last = max(running, key=lambda one: one.last_at)
    return Timings(
        queue_ms=None if last.queue_s is None else _ms(last.queue_s),
        prefill_ms=None if last.prefill_s is None else _ms(last.prefill_s),
        decode_ms=_ms(last.decode_s),
        total_ms=_ms(time.monotonic() - arrived),
        cached_tokens=sum(one.cached_tokens for one in running),
        preemptions=sum(one.preemptions for one in running),
    )


def used_by(running: Sequence[Running], n: int, arrived: float) -> Used:
    """Of what the engine let in; a prompt counts once, however many (`n`) answers it got."""
    prompts = [running[i : i + n] for i in range(0, len(running), n)]
    taken = [answers for answers in prompts if any(one.let_in for one in answers)]
    queued = [one.queue_s for one in running if one.queue_s is not None]
    first = min((one.first_at for one in running if one.first_at is not None), default=None)
    return Used(
        prompt_tokens=sum(answers[0].prompt_tokens for answers in taken),
        cached_tokens=sum(answers[0].cached_tokens for answers in taken),
        completion_tokens=sum(one.answer.completion_tokens for one in running),
        queue_s=min(queued, default=None),
        ttft_s=None if first is None else first - arrived,
        finish_reasons=[one.finish for one in running],
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
