"""One engine request of a generation, and what is known of it so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from servekit.engine.messages import Delta, Event
from servekit.server.text import Answer


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
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None
    first_at: float | None = None
    last_at: float = 0.0
    finish: str | None = None
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
