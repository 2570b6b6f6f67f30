"""What the decoder is given for one step."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of one step laid end to end: R rows, T tokens, S of them sampled.

    A row is a run of consecutive positions of one request: a prefill chunk or a single decoded
    token; both kinds may stand in one step. Tensors are int64 unless said, and on the decoder's
    device; lengths are Python ints, too, so that shapes are known without a copy back.
    """

    token_ids: torch.Tensor
    """[T] every row's tokens, row after row."""

    positions: torch.Tensor
    """[T] position of each token in its request, from 0."""

    slots: tuple[torch.Tensor, ...]
    """For each group of layers, [T]: where keys and values of each token are written, block *
    block_size + offset. No slot twice, and never one of block 0."""

    query_lens: list[int]
    """[R] tokens of each row in this step, at least 1; they sum to T."""

    seq_lens: list[int]
    """[R] tokens of each row's request once this step is done: cached ones and these. The row's
    first position is `seq_lens[r] - query_lens[r]`."""

    decodes: int
    """The first so many rows are single tokens of requests that decode."""

    query_starts: torch.Tensor
    """[R + 1], int32: where each row's tokens begin, and T."""

    contexts: torch.Tensor
    """[R], int32: `seq_lens` on the device."""

    block_tables: tuple[torch.Tensor, ...]
    """For each group of layers, [R, max_blocks]: block numbers from position 0 on, at least
    ceil(seq_lens[r] / block_size) of them, then 0, the null block; 0, too, where no layer of the
    group looks any more."""

    sample_at: torch.Tensor
    """[S] indices into T of the tokens whose logits are wanted; S may be 0. The logits come in this
    order."""
