"""What attention in torch works out once a step and shares between all layers.

It depends on lengths and block tables alone: which slots are gathered, which are masked, which rows
go together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

PADDING_PER_GROUP = 256
"""Tokens of padding that a group of decode rows may gather; on a CPU one more group costs a layer
about as much."""

STEP = 16
"""Queries and contexts are padded to multiples of this: a CPU's attention compiles small matrix
products for the sizes it meets, and keeps them all."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """B rows of one token and like context, at most L, attended to in one call."""

    tokens: torch.Tensor | None
    """[B] their places among the step's T tokens; None: the first B."""

    slots: torch.Tensor
    """[B * L] slots of their context, 0 where a row is shorter."""

    context: int
    """L"""

    mask: torch.Tensor | None
    """[B, 1, 1, L] added to scores, 0 or -inf; None: all contexts are L long."""


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row of several tokens, those at `start:end` of the step's T, and its context of L.

    Q is `end - start` and the padding: queries whose results nobody reads.
    """

    start: int
    end: int
    padding: int

    slots: torch.Tensor | None
    """[L] slots of its context, padded with 0; None: the row is all of it, nothing is gathered, and
    keys are padded like queries."""

    mask: torch.Tensor | None
    """[Q, L] added to scores, 0 or -inf; None: causal."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    decodes: list[DecodeGroup]
    prefills: list[PrefillRow]

    workspace: torch.Tensor
    """[2, tokens, kv_heads, head_dim] of the cache's type that gathers go to: memory taken once a
    step stays in the processor's caches from layer to layer."""


def plan_attention(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_tables: Sequence[torch.Tensor],
    *,
    key_cache: torch.Tensor,
    window: int | None,
    dtype: torch.dtype,
    gather_tokens: int,
    read_back: bool = False,
) -> list[AttentionPlan]:
    """The plan of R rows of T tokens in all, for each of some block tables [R, max_blocks].

    Layers that differ in nothing but the table share masks. Each token sees positions up to its
    own, with a window the last `window` of those. `key_cache` is that of any layer, `dtype` that of
    the queries. Decode rows are gathered together up to `gather_tokens` tokens of context, so that
    memory does not grow with their number. With `read_back` all keys and values come from the
    cache, those of the step itself too.
    """
    block_size, device = key_cache.shape[1], block_tables[0].device
    ends = list(accumulate(query_lens))
    visible = [seq_len if window is None else min(seq_len, window) for seq_len in seq_lens]
    plans = [AttentionPlan([], [], key_cache[:0]) for _ in block_tables]
    for rows in _alike(query_lens, visible, gather_tokens):
        real, position, padded = _decode_context(rows, seq_lens, visible, device)
        tokens = torch.tensor([ends[row] - 1 for row in rows], device=device)
        chosen = None if len(rows) == ends[-1] else tokens
        mask = additive(real[:, None, None], dtype) if padded else None
        for plan, table in zip(plans, block_tables, strict=True):
            read = _slots(table[rows], position, real, block_size).view(-1)
            plan.decodes.append(DecodeGroup(chosen, read, position.shape[1], mask))
    for row, (length, seq_len, end) in enumerate(zip(query_lens, seq_lens, ends, strict=True)):
        if length > 1:
            padding = -length % STEP
            seen, key = _prefill_context(length, padding, seq_len, device, window, read_back)
            mask = None if seen is None else additive(seen, dtype)
            for plan, table in zip(plans, block_tables, strict=True):
                past = None
                if key is not None:
                    past = _slots(table[row][None], key[None], key[None] < seq_len, block_size)[0]
                plan.prefills.append(PrefillRow(end - length, end, padding, past, mask))
    workspace = key_cache.new_empty((2, _gathered(plans[0]), *key_cache.shape[2:]))
    return [replace(plan, workspace=workspace) for plan in plans]


def _gathered(plan: AttentionPlan) -> int:
    """Tokens of the largest gather, the same for every table."""
    gathers = [group.slots.numel() for group in plan.decodes]
    gathers += [row.slots.numel() for row in plan.prefills if row.slots is not None]
    return max(gathers, default=0)


def _alike(query_lens: Sequence[int], visible: list[int], gather_tokens: int) -> list[list[int]]:
    """Groups of rows of one token and like context, each in ascending order."""
    rows = [row for row, query_len in enumerate(query_lens) if query_len == 1]
    groups: list[list[int]] = []
    longest = padding = 0
    for row in sorted(rows, key=lambda row: -visible[row]):
        padding += longest - visible[row]
        full = bool(groups) and (len(groups[-1]) + 1) * longest > gather_tokens
        if not groups or full or padding > PADDING_PER_GROUP:
            groups.append([])
            longest, padding = visible[row] + -visible[row] % STEP, 0
        groups[-1].append(row)
    return [sorted(group) for group in groups]


def _decode_context(
    rows: list[int], seq_lens: Sequence[int], visible: list[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Which places hold something, and their positions, [B, L]; whether there are empty ones."""
    lengths = torch.tensor([visible[row] for row in rows], device=device)[:, None]
    ends = torch.tensor([seq_lens[row] for row in rows], device=device)[:, None]
    longest = max(visible[row] for row in rows)
    longest += -longest % STEP
    place = torch.arange(longest, device=device)
    real = place < lengths
    padded = any(visible[row] < longest for row in rows)
    return real, (ends - lengths + place).where(real, 0), padded


def _slots(
    tables: torch.Tensor, position: torch.Tensor, real: torch.Tensor, block_size: int
) -> torch.Tensor:
    """[B, L] slots of positions [B, L] by tables [B, max_blocks]; 0 where nothing is real."""
    position = position.where(real, 0)
    blocks = tables.gather(1, position // block_size)
    return (blocks * block_size + position % block_size).where(real, 0)


def _prefill_context(
    query_len: int,
    padding: int,
    seq_len: int,
    device: torch.device,
    window: int | None,
    read_back: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What each query sees, [Q, L] or None for causal, and positions, [L] or None for none.

    Positions from `seq_len` on are padding.
    """
    first = seq_len - query_len
    alone = first == 0 and not read_back
    if alone and (window is None or query_len <= window):
        return None, None
    oldest = 0 if first == 0 or window is None else max(0, first - window + 1)
    context = seq_len - oldest
    query = torch.arange(first, seq_len + padding, device=device)[:, None]
    key = torch.arange(oldest, seq_len + -context % STEP, device=device)
    seen = (key <= query) & (key < seq_len)
    if window is not None:
        seen &= key > query - window
    return seen, None if alone else key


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores: 0 where something is seen, -inf elsewhere."""
    zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return zeros.masked_fill_(~seen, float("-inf"))
