"""From a batch in plain integers to the tensors of a step."""

from collections.abc import Callable, Sequence
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
    decodes, others = batch.decodes, batch.others
    rows = batch.num_rows
    query_lens = [1] * len(decodes.ids) + [len(row.tokens) for row in others]
    ends = np.cumsum(query_lens)
    starts = np.fromiter(chain(decodes.starts, (row.start for row in others)), np.int64, rows)
    row_of = np.repeat(np.arange(rows), query_lens)

    given = chain(decodes.tokens, *(row.tokens for row in others))
    tokens = np.fromiter(given, np.int64, int(ends[-1]))
    for index in np.flatnonzero(tokens == PLACEHOLDER):
        tokens[index] = last_token(_request_of(batch, int(row_of[index])))
    positions = np.arange(len(tokens)) + (starts + query_lens - ends)[row_of]

    held = [*decodes.tables, *(row.tables for row in others)]
    tables = [_block_tables(own) for own in zip(*held, strict=True)]
    block, offset = np.divmod(positions, block_size)
    slots = [table[row_of, block] * block_size + offset for table in tables]
    samples = [True] * len(decodes.ids) + [row.samples for row in others]
    sample_at = ends[samples] - 1

    begins, contexts = np.concatenate(([0], ends)), starts + query_lens
    packed = [tokens, positions, sample_at, begins, contexts, *slots]
    parts = _to_device([*packed, *(table.ravel() for table in tables)], device)
    return StepInputs(
        token_ids=parts[0],
        positions=parts[1],
        slots=parts[5 : len(packed)],
        query_lens=query_lens,
        seq_lens=contexts.tolist(),
        decodes=len(decodes.ids),
        query_starts=parts[3].int(),
        contexts=parts[4].int(),
        block_tables=tuple(part.view(rows, -1) for part in parts[len(packed) :]),
        sample_at=parts[2],
    )


def _request_of(batch: Batch, row: int) -> int:
    decodes = batch.decodes.ids
    return decodes[row] if row < len(decodes) else batch.others[row - len(decodes)].request_id


def _block_tables(blocks: Sequence[list[int]]) -> np.ndarray:
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
