"""A request as the scheduler sees it: tokens known, tokens computed, blocks held."""

from dataclasses import dataclass, field
from enum import Enum

from servekit.scheduler.batch import FinishReason


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
    drafts: list[int] = field(default_factory=list)
    """Guesses for what follows the last known token; the next row takes them, or drops them where
    that token is not known yet."""

    state: State = field(init=False, default=State.WAITING)
    finish: FinishReason | None = field(init=False, default=None)
    tokens: list[int] = field(init=False)
    """The prompt and the output committed so far."""
    computed: int = field(init=False, default=0)
    committed: int = field(init=False, default=0)
    """Of `computed`, those whose step has been committed: their KV is in the cache."""
    wanted: int = field(init=False)
    limit: int = field(init=False)
    """Tokens of prompt and output together at which it ends."""
    in_flight: int = field(init=False, default=0)
    """Rows in batches that are not committed."""

    blocks: list[int] = field(init=False, default_factory=list)
    """Block table. It only grows; giving blocks back replaces the list, for rows share it."""
    hashes: list[bytes] = field(init=False, default_factory=list)
    """Of the leading full blocks of `tokens`, as many as were needed yet."""
    sealed: int = field(init=False, default=0)
    """Leading blocks that were offered to the prefix cache, or came from it."""
    cached_tokens: int = field(init=False, default=0)
    preemptions: int = field(init=False, default=0)

    deadline: float | None = field(init=False, default=None)
    admitted_at: float | None = field(init=False, default=None)
    first_token_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.wanted = len(self.tokens)
        self.limit = len(self.tokens) + self.max_tokens

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

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
        """Forget what was computed, keep what was said."""
        self.computed = self.committed = self.sealed = 0
        self.wanted = len(self.tokens)
        self.blocks = []
        self.drafts = []
