"""Inputs at fixed places: what a captured graph reads, and what a step is copied through."""

from collections.abc import Sequence

import numpy as np
import torch

from servekit.model.inputs import StepInputs


class StaticDecodes:
    """Inputs of steps in which every row is one token of a request that decodes, on the device.

    They lie where they were allocated, for graphs read them there. A row of padding has a context
    of 0, of which attention makes 0, and the slot -1, which nothing is written to.
    """

    def __init__(self, most: int, table_widths: Sequence[int], device: str) -> None:
        """For up to `most` rows; `table_widths` are the blocks of the longest request, by group."""
        self.most = most
        self.token_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self.positions = torch.zeros(most, dtype=torch.int64, device=device)
        self.slots = tuple(
            torch.full((most,), -1, dtype=torch.int64, device=device) for _ in table_widths
        )
        self.contexts = torch.zeros(most, dtype=torch.int32, device=device)
        self.tables = tuple(
            torch.zeros((most, width), dtype=torch.int32, device=device) for width in table_widths
        )
        self.rows = torch.arange(most + 1, dtype=torch.int64, device=device)
        self.starts = self.rows.int()

    def of(self, size: int) -> StepInputs:
        """Those of the first `size` rows; their lengths on the host mean nothing."""
        return StepInputs(
            token_ids=self.token_ids[:size],
            positions=self.positions[:size],
            slots=tuple(slots[:size] for slots in self.slots),
            query_lens=[1] * size,
            seq_lens=[1] * size,
            decodes=size,
            query_starts=self.starts[: size + 1],
            contexts=self.contexts[:size],
            block_tables=tuple(table[:size] for table in self.tables),
            sample_at=self.rows[:size],
        )

    def fill(self, step: StepInputs, size: int) -> None:
        """With a step of decodes alone; the rows after them, up to `size`, are padding.

        What a table holds beyond its row stays there: some block's number, which nobody reads.
        """
        rows = len(step.query_lens)
        self.token_ids[:rows].copy_(step.token_ids)
        self.positions[:rows].copy_(step.positions)
        self.contexts[:rows].copy_(step.contexts)
        self.contexts[rows:size].zero_()
        for slots, given in zip(self.slots, step.slots, strict=True):
            slots[:rows].copy_(given)
            slots[rows:size].fill_(-1)
        for table, given in zip(self.tables, step.block_tables, strict=True):
            width = min(given.shape[1], table.shape[1])
            table[:rows, :width].copy_(given[:, :width])


class Staging:
    """Two buffers of pinned memory and one of the device, which steps pass through by turns.

    While one step is copied from its buffer, or may be, the next is laid out in the other. The
    device's is written after all that was to read it: both are done in the order of its stream.
    """

    def __init__(self, numbers: int, device: str) -> None:
        """Each holds so many int64."""
        self.host = [
            torch.empty(numbers, dtype=torch.int64, pin_memory=device != "cpu") for _ in range(2)
        ]
        self.device = torch.empty(numbers, dtype=torch.int64, device=device)
        self.turn = 0

    def next(self) -> torch.Tensor:
        """The buffer of the step before the last, which is over."""
        self.turn = 1 - self.turn
        return self.host[self.turn]

    def to_device(self, packed: torch.Tensor) -> torch.Tensor:
        """What lies at the beginning of a buffer; valid until the next call."""
        on_device = self.device[: len(packed)]
        on_device.copy_(packed, non_blocking=True)
        return on_device


def numbers_of_a_step(rows: int, tokens: int, table_widths: Sequence[int]) -> int:
    """The most int64 that a step of these limits is laid out in."""
    groups = len(table_widths)
    parts = [tokens] * (2 + groups) + [rows, rows + 1, rows]
    return sum(map(even, [*parts, *(rows * width for width in table_widths)]))


def even(size: int) -> int:
    """Parts begin at 16 bytes: Triton compiles a kernel anew for a pointer that does not."""
    return size + size % 2


def pack(parts: Sequence[np.ndarray], buffer: torch.Tensor | None) -> torch.Tensor:
    """End to end, each to an even number; in the buffer, if they have room there."""
    pad = np.zeros(1, np.int64)
    padded = [piece for part in parts for piece in (part, pad[: part.size % 2])]
    size = sum(piece.size for piece in padded)
    if buffer is None or size > len(buffer):
        return torch.from_numpy(np.concatenate(padded))
    packed = buffer[:size]
    np.concatenate(padded, out=packed.numpy())
    return packed


def unpack(packed: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """The parts again."""
    padded = torch.split(packed, [even(size) for size in sizes])
    return tuple(part[:size] for part, size in zip(padded, sizes, strict=True))
