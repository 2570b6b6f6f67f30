"""What one step is, in plain integers: the currency between scheduler and executor.

`Row` and `Progress` are named tuples: one of each is made for every token of every request, and a
named tuple is made in a third of the time of a frozen dataclass.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

PLACEHOLDER = -1
"""Stands for a token that a batch still in flight is about to sample."""

FinishReason = Literal["stop", "length", "abort", "error"]


class Row(NamedTuple):
    """One request's share of a step: `tokens` at positions `start` and on.

    `blocks` is the block table from position 0 to the last of this row at least; position p lives
    in `blocks[p // block_size]` at offset `p % block_size`. It is the request's own list, not a
    copy: while the row is in flight it may grow at its end and nothing else about it changes.
    With `samples`, the logits of the last position give the next token. The last `drafts` tokens
    are guesses to be verified. A PLACEHOLDER is what the previous row of this request sampled.
    """

    request_id: int
    start: int
    tokens: list[int]
    blocks: list[int]
    samples: bool
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step; `id` counts steps."""

    id: int
    rows: list[Row]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor made of a batch.

    `tokens` has an entry for each row that samples: the accepted drafts and the one token after
    them. `failed` holds, by request, why a row has none.
    """

    tokens: dict[int, list[int]]
    failed: dict[int, str] = field(default_factory=dict)


class Progress(NamedTuple):
    """What a request gained, and with `finish` how it ended; nothing follows that one.

    `tokens` are new ones; after a stop they end with `stop_token`. `cached_tokens` of the prompt
    came from the prefix cache.
    """

    request_id: int
    tokens: list[int]
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    cached_tokens: int = 0
    preemptions: int = 0
