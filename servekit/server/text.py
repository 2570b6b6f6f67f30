"""Tokens become text: detokenised as they come, cut exactly at stop strings.

Text and logprobs leave in pieces; the pieces of a stream, put together, are the answer that is not
streamed, because that answer is put together from the same pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from servekit.engine.messages import Delta, TokenLogprobs
from servekit.server.wire import FinishReason


class TextStream(Protocol):
    """Holds back only an incomplete character."""

    def push(self, ids: Sequence[int]) -> str: ...
    def finish(self) -> str: ...


@dataclass(slots=True)
class StopStrings:
    """Finds the stop string that is complete first; of several that end together, the longest.

    Text that may still become a stop string is held back: never more than the longest stop's length
    less one. What is found does not depend on how the text was split into pushes.
    """

    stops: tuple[str, ...]
    include: bool
    matched: str | None = None
    held: str = ""

    def push(self, text: str) -> str:
        """What can be said now; after a match, nothing more."""
        if self.matched is not None:
            return ""
        if not self.stops:
            return text
        seen = self.held + text
        ends = [
            (start + len(stop), -len(stop), stop)
            for stop in self.stops
            if (start := seen.find(stop)) >= 0
        ]
        if ends:
            end, negative_length, self.matched = min(ends)
            self.held = ""
            return seen[: end if self.include else end + negative_length]
        keep = self._may_become_a_stop(seen)
        self.held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def _may_become_a_stop(self, seen: str) -> int:
        longest = min(len(seen), max(map(len, self.stops)) - 1)
        for size in range(longest, 0, -1):
            tail = seen[-size:]
            if any(stop.startswith(tail) for stop in self.stops):
                return size
        return 0

    def release(self) -> str:
        """What was held back and now never becomes a stop string."""
        held, self.held = self.held, ""
        return held


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its logprobs; `offset` is where its text starts, in characters."""

    token: int
    logprobs: TokenLogprobs
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one answer gained. `finish` ends it, and then `stop_reason` says what matched, if
    anything but an end-of-sequence token did."""

    text: str
    scored: list[Scored] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.scored or self.finish)


@dataclass(slots=True)
class Answer:
    """One answer as it grows.

    `completion_tokens` counts what was generated, the token that ended it too. Logprobs are given
    for tokens whose text starts inside the answer, once that text is out.
    """

    stream: TextStream
    stops: StopStrings
    min_tokens: int
    eos_ids: frozenset[int]
    completion_tokens: int = 0
    finished: bool = False
    _decoded: int = 0
    _released: int = 0
    _waiting: list[Scored] = field(default_factory=list)

    def take(self, delta: Delta) -> Piece:
        """A finished answer takes nothing more; `delta` may end it early, at a stop string."""
        parts: list[str] = []
        for index, token in enumerate(delta.tokens):
            self.completion_tokens += 1
            if self._ends_unsaid(delta, index):
                break
            if delta.logprobs is not None:
                self._waiting.append(Scored(token, delta.logprobs[index], self._decoded))
            parts.append(self._say(self.stream.push([token])))
            if self.stops.matched is not None:
                return self._end("".join(parts), "stop", self.stops.matched)
        if delta.finish is None:
            return self._piece("".join(parts))
        parts += [self._say(self.stream.finish())]
        if self.stops.matched is not None:
            return self._end("".join(parts), "stop", self.stops.matched)
        parts += [self.stops.release()]
        stop = delta.stop_token if delta.finish == "stop" else None
        reason = None if stop in self.eos_ids else stop
        return self._end("".join(parts), "stop" if delta.finish == "stop" else "length", reason)

    def _ends_unsaid(self, delta: Delta, index: int) -> bool:
        """A stop token is not part of the text, unless that was asked for."""
        last = index == len(delta.tokens) - 1
        stops = delta.finish == "stop" and delta.tokens[index] == delta.stop_token
        return last and stops and not self.stops.include

    def _say(self, text: str) -> str:
        self._decoded += len(text)
        if self.completion_tokens <= self.min_tokens:
            return text
        return self.stops.push(text)

    def _piece(self, text: str) -> Piece:
        self._released += len(text)
        return Piece(text, self._scored_before(self._released))

    def _end(self, text: str, finish: FinishReason, reason: str | int | None) -> Piece:
        self.finished = True
        self._released += len(text)
        cut = self.stops.matched is not None
        scored = self._scored_before(self._released) if cut else self._waiting
        self._waiting = []
        return Piece(text, scored, finish, reason)

    def _scored_before(self, offset: int) -> list[Scored]:
        """Offsets never fall, so these are a prefix of those that wait."""
        count = 0
        while count < len(self._waiting) and self._waiting[count].offset < offset:
            count += 1
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        return ready
