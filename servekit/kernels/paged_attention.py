"""Attention of a ragged batch over a paged cache (Kwon et al. 2023), in torch."""

import torch
import torch.nn.functional as F

from servekit.kernels.attention_plan import AttentionPlan, PrefillRow, additive
from servekit.kernels.kv import LayerCache, dequantise


def paged_attention_reference(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    cache: LayerCache,
    plan: AttentionPlan,
    *,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """What the Triton kernels of attention mean, and the CPU path; [N, heads * head_dim].

    `query` [N, heads, head_dim], of which the first T are the step's tokens and the rest padding,
    for which the result is 0. `key` and `value` [N, kv_heads, head_dim] are what the cache holds of
    these tokens, which is all that a row without context attends to; None where the plan reads
    everything back. Slot 0 of the cache must be finite. With `softcap` a scaled score s becomes
    softcap * tanh(s / softcap).
    """
    out = query.new_zeros(query.shape)
    for group in plan.decodes:
        rows = len(group.slots) // group.context
        chosen = query[:rows] if group.tokens is None else query[group.tokens]
        keys, values = _gather(cache, group.slots, plan.workspace, rows, query.dtype)
        grouped = chosen.view(
            rows, keys.shape[1], -1, query.shape[2]
        )  # heads of a KV head: queries
        result = _attend(grouped, keys, values, group.mask, scale, softcap).reshape(chosen.shape)
        if rows == len(query):
            return result.flatten(1)
        out[slice(rows) if group.tokens is None else group.tokens] = result
    for row in plan.prefills:
        here = slice(row.start, row.end)
        queries = _rows_of(query, row)
        if row.slots is None:
            assert key is not None, "a plan that reads nothing back is for a step that has its keys"
            assert value is not None, "they come together"
            keys, values = _rows_of(key, row), _rows_of(value, row)
        else:
            keys, values = _gather(cache, row.slots, plan.workspace, 1, query.dtype)
        result = _attend(queries, keys, values, row.mask, scale, softcap, causal=row.mask is None)
        out[here] = result[0, :, : row.end - row.start].transpose(0, 1)
    return out.flatten(1)


def _rows_of(part: torch.Tensor, row: PrefillRow) -> torch.Tensor:
    """[1, heads, Q, head_dim] of a row's tokens of [T, heads, head_dim], padded with zeros."""
    padded = F.pad(part[row.start : row.end], (0, 0, 0, 0, 0, row.padding))
    return padded.transpose(0, 1)[None]


def _gather(
    cache: LayerCache,
    slots: torch.Tensor,
    workspace: torch.Tensor,
    rows: int,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Keys and values [rows, kv_heads, tokens, head_dim] of rows * tokens slots."""
    gathered = []
    parts = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    for (stored, scales), space in zip(parts, workspace, strict=True):
        flat = _select(stored.flatten(0, 1), slots, space[: slots.numel()])
        own = None if scales is None else scales.flatten(0, 1).index_select(0, slots)
        wide = dequantise(flat, own, dtype)
        gathered.append(wide.view(rows, -1, *flat.shape[1:]).transpose(1, 2))
    return gathered


def _select(stored: torch.Tensor, slots: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    if stored.dtype == torch.float8_e4m3fn:  # its bits: torch selects none of this type
        bits = torch.index_select(stored.view(torch.uint8), 0, slots, out=space.view(torch.uint8))
        return bits.view(stored.dtype)
    return torch.index_select(stored, 0, slots, out=space)


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
        mask = additive(ones.tril(), torch.float32)
    grouped = query.view(len(query), key.shape[1], -1, *query.shape[2:])  # heads by KV head
    scores = (grouped @ key[:, :, None].transpose(-1, -2)).flatten(1, 2).float() * scale
    scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1).to(value.dtype).view(*grouped.shape[:-1], -1)
    return (weights @ value[:, :, None]).flatten(1, 2)
