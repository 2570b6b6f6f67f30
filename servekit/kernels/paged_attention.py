"""Attention of a ragged batch over a paged cache of keys and values (Kwon et al. 2023).

What depends on lengths and block tables alone is worked out once a step (`plan_attention`) and
shared by all layers: which slots are gathered, which are masked, which rows go together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F

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
    slots: torch.Tensor
    """[T] where keys and values are written."""

    decodes: list[DecodeGroup]
    prefills: list[PrefillRow]

    workspace: torch.Tensor
    """[2, tokens, kv_heads, head_dim] that gathers go to: memory taken once a step stays in the
    processor's caches from layer to layer."""


def plan_attention(
    query_lens: list[int],
    seq_lens: list[int],
    block_tables: Sequence[torch.Tensor],
    slots: Sequence[torch.Tensor],
    *,
    key_cache: torch.Tensor,
    window: int | None,
    dtype: torch.dtype,
    gather_tokens: int,
) -> list[AttentionPlan]:
    """The plan of R rows of T tokens in all, for each of some block tables and their slots.

    A table is [R, max_blocks], its slots [T]; layers that differ in nothing else share masks. Each
    token sees positions up to its own, with a window the last `window` of those. `key_cache` is
    that of any layer, `dtype` that of the queries. Decode rows are gathered together up to
    `gather_tokens` tokens of context, so that memory does not grow with their number.
    """
    block_size, device = key_cache.shape[1], slots[0].device
    ends = list(accumulate(query_lens))
    visible = [seq_len if window is None else min(seq_len, window) for seq_len in seq_lens]
    plans = [AttentionPlan(own, [], [], key_cache[:0]) for own in slots]
    for rows in _alike(query_lens, visible, gather_tokens):
        real, position, padded = _decode_context(rows, seq_lens, visible, device)
        tokens = torch.tensor([ends[row] - 1 for row in rows], device=device)
        chosen = None if len(rows) == ends[-1] else tokens
        mask = _additive(real[:, None, None], dtype) if padded else None
        for plan, table in zip(plans, block_tables, strict=True):
            read = _slots(table[rows], position, real, block_size).view(-1)
            plan.decodes.append(DecodeGroup(chosen, read, position.shape[1], mask))
    for row, (length, seq_len, end) in enumerate(zip(query_lens, seq_lens, ends, strict=True)):
        if length > 1:
            padding = -length % STEP
            seen, key = _prefill_context(length, padding, seq_len, device, window)
            mask = None if seen is None else _additive(seen, dtype)
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


def _alike(query_lens: list[int], visible: list[int], gather_tokens: int) -> list[list[int]]:
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
    rows: list[int], seq_lens: list[int], visible: list[int], device: torch.device
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
    query_len: int, padding: int, seq_len: int, device: torch.device, window: int | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What each query sees, [Q, L] or None for causal, and positions, [L] or None for none.

    Positions from `seq_len` on are padding.
    """
    first = seq_len - query_len
    if first == 0 and (window is None or query_len <= window):
        return None, None
    oldest = 0 if first == 0 or window is None else max(0, first - window + 1)
    context = seq_len - oldest
    query = torch.arange(first, seq_len + padding, device=device)[:, None]
    key = torch.arange(oldest, seq_len + -context % STEP, device=device)
    seen = (key <= query) & (key < seq_len)
    if window is not None:
        seen &= key > query - window
    return seen, None if first == 0 else key


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return zeros.masked_fill_(~seen, float("-inf"))


def paged_attention_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """The meaning of `paged_attention`, and its CPU path."""
    caches = (key_cache.flatten(0, 1), value_cache.flatten(0, 1))  # [slots, kv_heads, head_dim]
    # what is attended to is what is stored: a chunk, a prefix hit or a preemption changes nothing
    stored_key, stored_value = key.to(key_cache.dtype), value.to(value_cache.dtype)
    for cache, new in zip(caches, (stored_key, stored_value), strict=True):
        cache.index_copy_(0, plan.slots, new[: len(plan.slots)])
    out = query.new_zeros(query.shape)
    for group in plan.decodes:
        rows = len(group.slots) // group.context
        chosen = query[:rows] if group.tokens is None else query[group.tokens]
        keys, values = _gather(caches, group.slots, plan.workspace, rows, query.dtype)
        grouped = chosen.view(rows, key.shape[1], -1, query.shape[2])  # heads of a KV head: queries
        result = _attend(grouped, keys, values, group.mask, scale, softcap).reshape(chosen.shape)
        if rows == len(query):
            return result.flatten(1)
        out[slice(rows) if group.tokens is None else group.tokens] = result
    for row in plan.prefills:
        here = slice(row.start, row.end)
        queries = _rows_of(query, row)
        if row.slots is None:
            keys = _rows_of(stored_key, row).to(query.dtype)
            values = _rows_of(stored_value, row).to(query.dtype)
        else:
            keys, values = _gather(caches, row.slots, plan.workspace, 1, query.dtype)
        result = _attend(queries, keys, values, row.mask, scale, softcap, causal=row.mask is None)
        out[here] = result[0, :, : row.end - row.start].transpose(0, 1)
    return out.flatten(1)


def _rows_of(part: torch.Tensor, row: PrefillRow) -> torch.Tensor:
    """[1, heads, Q, head_dim] of a row's tokens of [T, heads, head_dim], padded with zeros."""
    padded = F.pad(part[row.start : row.end], (0, 0, 0, 0, 0, row.padding))
    return padded.transpose(0, 1)[None]


def _gather(
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    workspace: torch.Tensor,
    rows: int,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Keys and values [rows, kv_heads, tokens, head_dim] of rows * tokens slots."""
    gathered = []
    for cache, space in zip(caches, workspace, strict=True):
        flat = torch.index_select(cache, 0, slots, out=space[: slots.numel()])
        gathered.append(flat.view(rows, -1, *flat.shape[1:]).transpose(1, 2).to(dtype))
    return gathered


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    causal: bool = False,
) -> torch.Tensor:
    """[B, heads, queries, head_dim] of query, key and value [B, kv_heads, tokens, head_dim]."""
    if softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        )
    if causal:
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = _additive(ones.tril(), torch.float32)
    grouped = query.view(len(query), key.shape[1], -1, *query.shape[2:])  # heads by KV head
    scores = (grouped @ key[:, :, None].transpose(-1, -2)).flatten(1, 2).float() * scale
    scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1).to(value.dtype).view(*grouped.shape[:-1], -1)
    return (weights @ value[:, :, None]).flatten(1, 2)


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Write keys and values of the step to their slots, then attend; [N, heads * head_dim].

    `query` [N, heads, head_dim], `key` and `value` [N, kv_heads, head_dim], the first T of the N
    are the step's tokens and the rest padding, for which the result is 0; the caches [num_blocks,
    block_size, kv_heads, head_dim] are those of one layer, and their slot 0 must be finite. With
    `softcap` a scaled score s becomes softcap * tanh(s / softcap).
    """
    return paged_attention_reference(
        query,
        key,
        value,
        key_cache,
        value_cache,
        plan,
        scale=scale,
        softcap=softcap,
    )
