"""What Triton's attention is told of a step: where rows begin and lie, and how long they are."""

from dataclasses import dataclass

import torch

MOST_SPLITS = 128
"""Of one row with one KV head, which is to fill a chip alone."""
SPLIT_TOKENS = 256
"""A split shorter than this costs more to merge than it saves."""


@dataclass(frozen=True, slots=True)
class PagedStep:
    """R rows of T tokens, laid end to end; the first `decodes` rows have one token each.

    Tensors are int32 on the device: `query_starts` [R + 1], `seq_lens` [R] with the tokens of this
    step, 0 for a row of a captured batch that is padding, `block_table` [R, max_blocks]. A table's
    entries before the window may be anything that is a block. `splits` is how many programs share
    a row's context; all else but the tensors' contents is fixed where a graph is captured.
    """

    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    tokens: int
    decodes: int
    splits: int
    window: int | None = None


def splits_for(rows: int, kv_heads: int, most_tokens: int, processors: int) -> int:
    """A power of two: enough programs to give every multiprocessor two, but no split so short that
    merging it costs more than it saves. `most_tokens` is the longest context there can be, for
    lengths are not known on the host when the grid is.
    """
    wanted = 2 * processors / (rows * kv_heads)
    splits = 1
    while splits < min(wanted, MOST_SPLITS) and most_tokens > splits * SPLIT_TOKENS:
        splits *= 2
    return splits
