"""From a batch in plain integers to the tensors of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from servekit.engine.static_inputs import pack, unpack
from servekit.model.inputs import StepInputs
from servekit.scheduler.batch import PLACEHOLDER, Batch

TokenAt = Callable[[int, int], int]
"""By request id and position: the token that a PLACEHOLDER there stands for."""
ToDevice = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a batch end to end, in memory of the host; the batch is not looked at again.

    `packed` has parts of `sizes`, int64: token ids, positions, places of samples, where rows begin,
    their contexts, and for each group of layers its slots, then for each its block tables, row
    after row.
    """

    packed: torch.Tensor
    sizes: list[int]
    groups: int
    query_lens: list[int]
    seq_lens: list[int]
    decodes: int
    unknown: list[tuple[int, int, int]]
    """Placeholders: index in the token ids, request id and position."""

    def inputs(self, token_at: TokenAt, to_device: ToDevice) -> StepInputs:
        """One copy to the device, whatever the number of rows. Every batch before is to be over."""
        if self.unknown:
            tokens = self.packed.numpy()
            for index, request_id, position in self.unknown:
                tokens[index] = token_at(request_id, position)
        parts = unpack(to_device(self.packed), self.sizes)
        rows, tables = len(self.query_lens), 5 + self.groups
        return StepInputs(
            token_ids=parts[0],
            positions=parts[1],
            slots=parts[5:tables],
            query_lens=self.query_lens,
            seq_lens=self.seq_lens,
            decodes=self.decodes,
            query_starts=parts[3].int(),
            contexts=parts[4].int(),
            block_tables=tuple(part.view(rows, -1) for part in parts[tables:]),
            sample_at=parts[2],
        )


def lay_out(batch: Batch, block_size: int, buffer: torch.Tensor | None = None) -> Layout:
    """In the buffer of the host, if it has room there."""
    decodes, others = batch.decodes, batch.others
    rows = batch.num_rows
    query_lens = [1] * len(decodes.ids) + [len(row.tokens) for row in others]
    ends = np.cumsum(query_lens)
    starts = np.fromiter(chain(decodes.starts, (row.start for row in others)), np.int64, rows)
    row_of = np.repeat(np.arange(rows), query_lens)

    given = chain(decodes.tokens, *(row.tokens for row in others))
    tokens = np.fromiter(given, np.int64, int(ends[-1]))
    positions = np.arange(len(tokens)) + (starts + query_lens - ends)[row_of]
    unknown = [
        (int(index), _request_of(batch, int(row_of[index])), int(positions[index]))
        for index in np.flatnonzero(tokens == PLACEHOLDER)
    ]

    held = [*decodes.tables, *(row.tables for row in others)]
    tables = [_block_tables(own) for own in zip(*held, strict=True)]
    block, offset = np.divmod(positions, block_size)
    slots = [table[row_of, block] * block_size + offset for table in tables]
    samples = [True] * len(decodes.ids) + [row.samples for row in others]
    sample_at = ends[samples] - 1

    begins, contexts = np.concatenate(([0], ends)), starts + query_lens
    fixed = [tokens, positions, sample_at, begins, contexts]
    parts = [*fixed, *slots, *(table.ravel() for table in tables)]
    return Layout(
        packed=pack(parts, buffer),
        sizes=[part.size for part in parts],
        groups=len(tables),
        query_lens=query_lens,
        seq_lens=contexts.tolist(),
        decodes=len(decodes.ids),
        unknown=unknown,
    )


def build_inputs(batch: Batch, block_size: int, device: str, token_at: TokenAt) -> StepInputs:
    """At once, for a batch that nobody prepared."""
    return lay_out(batch, block_size).inputs(token_at, lambda packed: packed.to(device))


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
