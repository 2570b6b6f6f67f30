"""What one step is, in plain integers: the currency between scheduler and executor.

Most rows of most steps are alike: one token of a request that decodes. They are columns
(`Decodes`), so that a step costs no object a row; everything else is a `Row`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

PLACEHOLDER = -1
"""Stands for a token that a batch still in flight is about to sample."""

FinishReason = Literal["stop", "length", "abort", "error"]

Tables = tuple[list[int], ...]
"""A block table for each group of layers, from position 0 on: position p lives in block
`table[p // block_size]` at offset `p % block_size`; 0, the null block, where it is no longer seen.
It is the request's own, not a copy: while a row is in flight it may grow at its end, what no row
in flight sees may become 0, and nothing else about it changes."""


class Row(NamedTuple):
    """One request's share of a step: `tokens` at positions `start` and on.

    With `samples`, the logits of the last position give the next token. The last `drafts` tokens
    are guesses to be verified. A PLACEHOLDER is what the previous row of this request sampled.
    """

    request_id: int
    start: int
    tokens: list[int]
    tables: Tables
    samples: bool
    drafts: int = 0


class Decodes(NamedTuple):
    """Rows of one token that sample, as columns of equal length: of which request, at which
    position, which token, and where it is kept.
    """

    ids: list[int]
    starts: list[int]
    tokens: list[int]
    tables: list[Tables]

    @property
    def rows(self) -> Iterator[Row]:
        for id, start, token, tables in zip(*self, strict=True):
            yield Row(id, start, [token], tables, True)


class Copies(NamedTuple):
    """Blocks (from, to) to be copied before the step, in this order: to host memory, within the
    cache, from host memory. Of each kind all are read before any is written.
    """

    to_host: list[tuple[int, int]]
    from_host: list[tuple[int, int]]
    within: list[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.to_host or self.from_host or self.within)


def no_copies() -> Copies:
    return Copies([], [], [])


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, decodes before the others; `id` counts steps."""

    id: int
    decodes: Decodes
    others: list[Row]
    copies: Copies = field(default_factory=no_copies)

    @classmethod
    def of(cls, id: int, rows: list[Row]) -> "Batch":
        """Of rows alone, none of them as columns."""
        return cls(id, Decodes([], [], [], []), rows)

    @property
    def rows(self) -> list[Row]:
        """All of them as rows, in the order in which their tokens lie in the step."""
        return [*self.decodes.rows, *self.others]

    @property
    def num_rows(self) -> int:
        return len(self.decodes.ids) + len(self.others)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes.ids) + sum(len(row.tokens) for row in self.others)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor made of a batch.

    `decoded` are the tokens after `batch.decodes`, in their order. `tokens` has an entry for each
    other row that samples: the accepted drafts and the one token after them. `failed` holds, by
    request, why a row has none (any token stands for it in `decoded`). `seconds` is how long the
    step took.
    """

    decoded: list[int]
    tokens: dict[int, list[int]]
    failed: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


class Progress(NamedTuple):
    """What a request gained, and with `finish` how it ended; nothing follows that one.

    `tokens` are new ones; after a stop they end with `stop_token`. `cached_tokens` of the prompt
    came from the prefix cache. Seconds from arrival to a seat and from there to the first token are
    told with the first token and at the end.
    """

    request_id: int
    tokens: list[int]
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None


class Gains(NamedTuple):
    """What a step gave: requests that went on by one token, as columns, and the others."""

    ids: list[int]
    tokens: list[int]
    others: list[Progress]

    @property
    def progress(self) -> list[Progress]:
        """All of it, one request each."""
        return [
            *(Progress(id, [token]) for id, token in zip(self.ids, self.tokens, strict=True)),
            *self.others,
        ]
