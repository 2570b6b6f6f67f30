"""Paged attention against softmax(q k^T) v written out, a token at a time."""

import math

import pytest
import torch

from servekit.kernels.attention_plan import PADDING_PER_GROUP, plan_attention
from servekit.kernels.kv import LayerCache
from servekit.kernels.paged_attention import paged_attention_reference

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 8, 3


def plain_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """One query [heads, head_dim] over keys and values [tokens, kv_heads, head_dim]."""
    out = []
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        scores = keys[:, kv_head] @ query[head] / math.sqrt(HEAD_DIM)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        out.append(scores.softmax(0) @ values[:, kv_head])
    return torch.cat(out)


class Cache:
    """Scattered blocks in memory full of NaN, but for the null block."""

    def __init__(self, seq_lens: list[int], dtype: torch.dtype = torch.float32) -> None:
        counts = [-(-length // BLOCK_SIZE) for length in seq_lens]
        free = iter((1 + torch.randperm(sum(counts))).tolist())
        self.tables = torch.zeros(len(seq_lens), max(counts) + 2, dtype=torch.int64)
        for row, count in enumerate(counts):
            self.tables[row, :count] = torch.tensor([next(free) for _ in range(count)])
        size = (sum(counts) + 1, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        self.keys = torch.full(size, float("nan"), dtype=dtype)
        self.values = torch.full(size, float("nan"), dtype=dtype)
        self.keys[0] = self.values[0] = 0

    def slots(self, row: int, start: int, end: int) -> torch.Tensor:
        place = torch.arange(start, end)
        return self.tables[row, place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE


def run(
    query_lens: list[int],
    seq_lens: list[int],
    *,
    window: int | None = None,
    softcap: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the op gives, and what it should; contexts before the rows are in the cache."""
    torch.manual_seed(0)
    cache = Cache(seq_lens, dtype)
    rows, truth = [], []
    for row, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        first = seq_len - query_len
        query = torch.randn(query_len, HEADS, HEAD_DIM)
        keys, values = torch.randn(2, seq_len, KV_HEADS, HEAD_DIM)
        past = cache.slots(row, 0, first)
        cache.keys.view(-1, KV_HEADS, HEAD_DIM)[past] = keys[:first].to(dtype)
        cache.values.view(-1, KV_HEADS, HEAD_DIM)[past] = values[:first].to(dtype)
        rows.append((query, keys[first:], values[first:], cache.slots(row, first, seq_len)))
        for place in range(first, seq_len):
            seen = slice(0 if window is None else max(0, place + 1 - window), place + 1)
            truth.append(plain_attention(query[place - first], keys[seen], values[seen], softcap))
    query, key, value, slots = (torch.cat(parts) for parts in zip(*rows, strict=True))
    (plan,) = plan_attention(
        query_lens,
        seq_lens,
        [cache.tables],
        key_cache=cache.keys,
        window=window,
        dtype=dtype,
        gather_tokens=64,
    )
    for stored, new in ((cache.keys, key), (cache.values, value)):
        stored.view(-1, KV_HEADS, HEAD_DIM)[slots] = new.to(dtype)
    out = paged_attention_reference(
        query.to(dtype),
        key.to(dtype),
        value.to(dtype),
        LayerCache(cache.keys, cache.values),
        plan,
        scale=HEAD_DIM**-0.5,
        softcap=softcap,
    )
    return out.float(), torch.stack(truth)


ROWS = {
    "one decode": ([1], [10]),
    "the first token": ([1], [1]),
    "decodes of equal length": ([1, 1, 1], [7, 7, 7]),
    "decodes of unequal length": ([1, 1, 1], [2, 19, 7]),
    "decodes too unequal for one group": ([1, 1, 1, 1], [300, 5, 290, 6]),
    "a whole prompt": ([11], [11]),
    "a chunk behind a prefix": ([5], [12]),
    "all kinds, mixed": ([1, 6, 1, 4, 1], [9, 6, 1, 17, 31]),
}


@pytest.mark.parametrize("softcap", [None, 1.5], ids=["uncapped", "softcap"])
@pytest.mark.parametrize("window", [None, 4, 100], ids=["full", "window 4", "window 100"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_each_token_attends_to_its_own_past_and_nothing_else(rows, window, softcap):
    ours, truth = run(*rows, window=window, softcap=softcap)
    torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_within_its_rounding():
    ours, truth = run(*ROWS["all kinds, mixed"], dtype=torch.bfloat16)
    torch.testing.assert_close(ours, truth, rtol=0, atol=0.03)


def test_rows_of_like_length_share_a_group_and_others_do_not():
    lengths = [PADDING_PER_GROUP + 50, PADDING_PER_GROUP + 40, 10, 12]
    cache = Cache(lengths)
    (plan,) = plan_attention(
        [1, 1, 1, 1],
        lengths,
        [cache.tables],
        key_cache=cache.keys,
        window=None,
        dtype=torch.float32,
        gather_tokens=65536,
    )
    assert [group.tokens.tolist() for group in plan.decodes] == [[0, 1], [2, 3]]


def test_a_group_gathers_no_more_tokens_than_allowed():
    lengths = [20, 20, 20]
    cache = Cache(lengths)
    (plan,) = plan_attention(
        [1, 1, 1],
        lengths,
        [cache.tables],
        key_cache=cache.keys,
        window=None,
        dtype=torch.float32,
        gather_tokens=70,
    )
    assert [group.slots.numel() for group in plan.decodes] == [64, 32]


def test_a_window_gathers_no_more_than_the_window():
    cache = Cache([50])
    (plan,) = plan_attention(
        [1],
        [50],
        [cache.tables],
        key_cache=cache.keys,
        window=4,
        dtype=torch.float32,
        gather_tokens=65536,
    )
    assert plan.decodes[0].slots.tolist() == [*cache.slots(0, 46, 50).tolist(), *[0] * 12]
