"""What one step is, in plain integers: the currency between scheduler and executor."""

from dataclasses import dataclass, field

PLACEHOLDER = -1
"""Stands for a token that a batch still in flight is about to sample."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request's share of a step: `tokens` at positions `start` and on.

    `blocks` is the block table from position 0 to the last of this row; position p lives in
    `blocks[p // block_size]` at offset `p % block_size`. With `samples`, the logits of the last
    position give the next token. The last `drafts` tokens are guesses to be verified.
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
