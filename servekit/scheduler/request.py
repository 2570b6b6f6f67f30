"""A request as the scheduler sees it: tokens known, tokens computed, blocks held."""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from servekit.scheduler.batch import FinishReason, Tables

SloClass = Literal["interactive", "batch"]


class Clock:
    """Batches planned and committed while some requests went on by one token in each.

    Those requests count what they have against it, so that a step writes nothing into them.
    """

    __slots__ = ("committed", "drafting", "planned")

    def __init__(self) -> None:
        self.planned = 0
        self.committed = 0
        self.drafting: set[Request] = set()
        """Those on this clock that were given guesses."""


STILL = Clock()
"""The clock of all others; it never moves."""


class State(Enum):
    WAITING = "waiting"
    """for a seat and blocks"""
    HELD = "held"
    """for something else, until a deadline"""
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """What is asked (first group), how far it is (second), what it holds (third), when (last).

    There is no prefill and no decode, only `computed` against `wanted`: of the tokens at positions
    below `wanted`, those below `computed` have been given to a step. `wanted` counts a token that
    a batch in flight will sample, and never the last token allowed, whose keys nobody reads. While
    drafts are in flight nobody knows how many will stay, and the two are equal.
    """

    id: int
    prompt: list[int]
    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    arrived: float = 0.0
    salt: bytes = b""
    """Requests share cached blocks only with those of the same salt."""
    priority: int = 0
    """Lower goes first, where the order asks for it."""
    tenant: str = ""
    slo_class: SloClass = "interactive"

    state: State = field(init=False, default=State.WAITING)
    finish: FinishReason | None = field(init=False, default=None)
    tokens: list[int] = field(init=False)
    """The prompt and the output committed so far."""
    limit: int = field(init=False)
    """Tokens of prompt and output together at which it ends."""

    _clock: Clock = field(init=False, default=STILL)
    _joined: int = field(init=False, default=0)
    """Batches planned before it came to its clock."""
    _computed: int = field(init=False, default=0)
    _wanted: int = field(init=False)
    """Both as they were when the clock began."""
    _committed: int = field(init=False, default=0)
    _in_flight: int = field(init=False, default=0)
    """Both as if nothing planned since it came to its clock was committed, or in flight."""
    _drafts: list[int] = field(init=False, default_factory=list)

    tables: Tables = field(init=False, default=())
    """Of each group of layers; none without a seat. Rows in flight share the lists."""
    hashes: list[bytes] = field(init=False, default_factory=list)
    """Of the leading full blocks of `tokens`, as many as were needed yet."""
    found: int = field(init=False, default=-1)
    """Leading blocks that were cached when somebody last asked while it waited; -1: nobody did."""
    sealed: int = field(init=False, default=0)
    """Leading blocks that were offered to the prefix cache, or came from it."""
    cached_tokens: int = field(init=False, default=0)
    preemptions: int = field(init=False, default=0)

    due: float = field(init=False, default=math.inf)
    """When its first token is promised."""
    held_until: float | None = field(init=False, default=None)
    admitted_at: float | None = field(init=False, default=None)
    first_token_at: float | None = field(init=False, default=None)
    finished_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self._wanted = len(self.tokens)
        self.limit = len(self.tokens) + self.max_tokens

    @property
    def computed(self) -> int:
        """Leading tokens that were given to a step."""
        return self._computed + self._clock.planned

    @computed.setter
    def computed(self, value: int) -> None:
        self._computed = value - self._clock.planned

    @property
    def wanted(self) -> int:
        """Leading tokens that are to be computed, as far as is known."""
        return self._wanted + self._clock.planned

    @wanted.setter
    def wanted(self, value: int) -> None:
        self._wanted = value - self._clock.planned

    @property
    def committed(self) -> int:
        """Of `computed`, those whose step has been committed: their KV is in the cache."""
        since = self._clock.committed - self._joined
        return self._committed + since if since > 0 else self._committed

    @committed.setter
    def committed(self, value: int) -> None:
        """Once what was planned on its clock is committed, only the clock writes it."""
        self._committed = value

    @property
    def in_flight(self) -> int:
        """Rows in batches that are not committed."""
        clock = self._clock
        return self._in_flight + clock.planned - max(clock.committed, self._joined)

    @in_flight.setter
    def in_flight(self, value: int) -> None:
        self._in_flight += value - self.in_flight

    @property
    def drafts(self) -> list[int]:
        """Guesses for what follows the last known token; the next row takes them, or drops them
        where that token is not known yet."""
        return self._drafts

    @drafts.setter
    def drafts(self, guesses: list[int]) -> None:
        self._drafts = guesses
        if guesses and self._clock is not STILL:
            self._clock.drafting.add(self)

    @property
    def in_lock_step(self) -> bool:
        """It gets one token in each step, by a clock."""
        return self._clock is not STILL

    def follow(self, clock: Clock) -> None:
        """From the next batch on it gets one token in each; it lacks just one now."""
        computed = self.computed
        self._clock, self._joined = clock, clock.planned
        self.computed, self.wanted = computed, computed + 1

    def stop(self) -> int:
        """It is on its own again; returns how many batches came before the first of the clock."""
        computed, committed, in_flight = self.computed, self.committed, self.in_flight
        joined, self._clock, self._joined = self._joined, STILL, 0
        self._computed, self._wanted = computed, min(computed + 1, self.limit - 1)
        self._committed, self._in_flight = committed, in_flight
        return joined

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def stops_at(self, token: int) -> bool:
        """If that came next, it would be the end."""
        enough = len(self.tokens) - len(self.prompt) >= self.min_tokens
        return enough and token in self.stop_ids

    def accept(self, start: int, new: list[int], *, drafts: bool) -> tuple[list[int], int | None]:
        """Append what a row whose last known token is at `start` sampled, up to a stop token.

        Returns what was appended and the stop token. Drafts that were not accepted never were:
        what was computed from them is computed again.
        """
        stop_token = None
        if self.stop_ids:
            patience = self.min_tokens + len(self.prompt) - len(self.tokens)
            for index, token in enumerate(new):
                if token in self.stop_ids and index >= patience:
                    new, stop_token = new[: index + 1], token
                    break
        self.tokens += new
        self.committed = start + len(new)
        if drafts:
            self.computed = self.committed
            self.wanted = min(self.computed + 1, self.limit - 1)
        return new, stop_token

    def restart(self) -> None:
        """Forget what was computed, keep what was said; its blocks are given back already."""
        self.computed = self.committed = self.sealed = 0
        self.wanted = len(self.tokens)
        self.drafts = []
