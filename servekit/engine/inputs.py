"""From a batch in plain integers to the tensors of a step."""

from collections.abc import Callable
from itertools import chain

import numpy as np
import torch

from servekit.model.inputs import StepInputs
from servekit.scheduler.batch import PLACEHOLDER, Batch


def build_inputs(
    batch: Batch, block_size: int, device: str, last_token: Callable[[int], int]
) -> StepInputs:
    """Lays the rows end to end; one copy to the device, whatever the number of rows.

    `last_token` gives, by request id, what a PLACEHOLDER stands for: the token sampled last.
    """
    rows = batch.rows
    query_lens = [len(row.tokens) for row in rows]
    ends = np.cumsum(query_lens)
    total = int(ends[-1])
    starts = np.fromiter((row.start for row in rows), np.int64, len(rows))
    row_of = np.repeat(np.arange(len(rows)), query_lens)

    tokens = np.fromiter(chain.from_iterable(row.tokens for row in rows), np.int64, total)
    for index in np.flatnonzero(tokens == PLACEHOLDER):
        tokens[index] = last_token(rows[row_of[index]].request_id)
    positions = np.arange(total) + (starts + query_lens - ends)[row_of]

    tables = _block_tables([row.blocks for row in rows])
    block, offset = np.divmod(positions, block_size)
    slots = tables[row_of, block] * block_size + offset
    sample_at = ends[[row.samples for row in rows]] - 1

    parts = _to_device([tokens, positions, slots, tables.ravel(), sample_at], device)
    return StepInputs(
        token_ids=parts[0],
        positions=parts[1],
        slots=parts[2],
        query_lens=query_lens,
        seq_lens=(starts + query_lens).tolist(),
        block_tables=parts[3].view(tables.shape),
        sample_at=parts[4],
    )


def _block_tables(blocks: list[list[int]]) -> np.ndarray:
    """[rows, longest], padded with 0, the null block."""
    lengths = np.fromiter(map(len, blocks), np.int64, len(blocks))
    tables = np.zeros((len(blocks), int(lengths.max())), np.int64)
    owned = np.arange(tables.shape[1]) < lengths[:, None]
    tables[owned] = np.fromiter(chain.from_iterable(blocks), np.int64, int(lengths.sum()))
    return tables


def _to_device(parts: list[np.ndarray], device: str) -> tuple[torch.Tensor, ...]:
    packed = torch.from_numpy(np.concatenate(parts))
    if device != "cpu":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return torch.split(packed, [part.size for part in parts])
