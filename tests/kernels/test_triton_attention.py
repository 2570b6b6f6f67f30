"""Decode and prefill over the paged cache, against the definition in float64."""

from typing import Any

import pytest
import torch

from servekit.kernels.attention import TorchAttention, TritonAttention
from servekit.kernels.kv import cache_pointers
from servekit.kernels.paged_step import splits_for
from servekit.kernels.target import Target
from tests.kernels.interpreter import races
from tests.kernels.paged import Paged, Rows

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Of results near 1; the sums are float32, probabilities are rounded to the type of the queries."""

DECODES: Rows = [(1, 1), (1, 70), (1, 16), (1, 33)]
MIXED: Rows = [(1, 40), (5, 5), (17, 50), (1, 20), (33, 33)]


def attended(
    paged: Paged, decodes: int, softcap: float | None = None, one_order: bool = False
) -> torch.Tensor:
    attention = TritonAttention(one_order)
    head_dim = paged.query.shape[2]
    (plan,) = attention.plans(
        paged.lengths(decodes),
        [paged.table],
        paged.cache,
        window=paged.window,
        dtype=paged.query.dtype,
    )
    return attention.attend(
        paged.query, None, None, paged.cache, plan, scale=head_dim**-0.5, softcap=softcap
    )


def check(paged: Paged, decodes: int, softcap: float | None = None) -> None:
    with races():
        got = attended(paged, decodes, softcap)
    expected = paged.attended(paged.query.shape[2] ** -0.5, softcap)
    tolerance = TOLERANCE[paged.query.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 17])
def test_decode_packs_the_heads_of_a_kv_head(group: int, kv_heads: int) -> None:
    check(Paged(DECODES, heads=group * kv_heads, kv_heads=kv_heads, head_dim=64), decodes=4)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 71])
def test_prefill_fills_its_tiles_with_any_number_of_heads(group: int) -> None:
    rows = [(45, 60), (1, 9), (2, 2)]
    check(Paged(rows, heads=group, kv_heads=1, head_dim=64), decodes=0)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("rows", [[(1, 40), (1, 65)], [(20, 37)]], ids=["decode", "prefill"])
def test_heads_of_every_size(head_dim: int, rows: Rows) -> None:
    decodes = len(rows) if rows[0][0] == 1 else 0
    check(Paged(rows, heads=2, kv_heads=1, head_dim=head_dim), decodes)


@pytest.mark.parametrize("block_size", [8, 24, 48])
@pytest.mark.parametrize("length", [8, 9, 47, 48, 49])
def test_lengths_around_the_ends_of_blocks(block_size: int, length: int) -> None:
    rows = [(1, length), (min(7, length), length)]
    check(Paged(rows, heads=2, kv_heads=2, head_dim=64, block_size=block_size), decodes=1)


@pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_of_queries_and_of_the_cache(dtype: torch.dtype, stored: Any) -> None:
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 64}
    check(Paged(MIXED, **sizes, dtype=dtype, stored=stored), decodes=1)


def test_bytes_of_fp8_are_read_where_the_chip_has_no_such_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paged = Paged(MIXED, heads=4, kv_heads=2, head_dim=64, stored=torch.float8_e4m3fn)
    typed = attended(paged, 1)
    ampere = Target("sm_80", "", 108, 166912)
    for module in ("paged_decode", "paged_prefill"):
        monkeypatch.setattr(f"servekit.kernels.{module}.target", lambda: ampere)
    assert cache_pointers(paged.cache, ampere)[2]
    torch.testing.assert_close(attended(paged, 1), typed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("window", [1, 8, 20, 100])
@pytest.mark.parametrize("block_size", [8, 16])
def test_a_window_hides_what_is_older_and_nothing_there_is_read(
    window: int, block_size: int
) -> None:
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 64, "block_size": block_size}
    check(Paged([(1, 90), (40, 110), *MIXED], **sizes, window=window), decodes=1)


@pytest.mark.parametrize("softcap", [5.0, 50.0])
def test_a_soft_cap_bends_scores(softcap: float) -> None:
    check(Paged(MIXED, heads=2, kv_heads=1, head_dim=64), 1, softcap)


@pytest.mark.parametrize("one_order", [False, True])
def test_a_row_of_no_length_is_zero_and_disturbs_nobody(one_order: bool) -> None:
    """As in the padding of a captured batch."""
    paged = Paged([(1, 30), (1, 5)], heads=2, kv_heads=1, head_dim=64)
    alone = attended(paged, 2, one_order=one_order)
    paged.query = torch.cat((paged.query, paged.query))
    paged.table = torch.cat((paged.table, torch.zeros_like(paged.table)))
    paged.rows = [(1, 30), (1, 5), (1, 0), (1, 0)]
    both = attended(paged, 4, one_order=one_order)
    assert torch.equal(both[:2], alone)
    assert not both[2:].any()


def test_tokens_of_padding_behind_the_rows_are_zero() -> None:
    paged = Paged(MIXED, heads=2, kv_heads=1, head_dim=64)
    tokens = len(paged.query)
    alone = attended(paged, 1)
    paged.query = torch.cat((paged.query, paged.query[:7]))
    got = attended(paged, 1)
    assert torch.equal(got[:tokens], alone)
    assert not got[tokens:].any()


def test_splits_are_merged_in_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    paged = Paged([(1, 300), (1, 3)], heads=2, kv_heads=1, head_dim=64)
    expected = paged.attended(64**-0.5)
    for splits in (1, 2, 16, 32, 128):
        monkeypatch.setattr("servekit.kernels.attention.splits_for", lambda *_, n=splits: n)
        got = attended(paged, 2)
        torch.testing.assert_close(got.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [None, 20])
def test_a_token_is_the_same_alone_in_any_batch_and_in_any_chunk(window: int | None) -> None:
    whole = Paged([(50, 50)], heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16, window=window)
    expected = attended(whole, 0, one_order=True)
    for start, end in [(0, 1), (0, 33), (33, 50), (49, 50)]:
        for others in (False, True):
            part = Paged(
                [(50, 50)], heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16, window=window
            )
            part.query, part.rows = part.query[start:end], [(end - start, end)]
            if others:
                part.rows = [(end - start, end), (end - start, end)]
                part.query = torch.cat((part.query, part.query))
                part.table = torch.cat((part.table, part.table))
            got = attended(part, decodes=0, one_order=True)
            assert torch.equal(got[: end - start], expected[start:end])


def test_the_torch_path_reads_back_what_it_was_not_given() -> None:
    paged = Paged(MIXED, heads=4, kv_heads=2, head_dim=64, stored=torch.int8)
    paged.cache.keys[0], paged.cache.values[0] = 0, 0
    for scales in (paged.cache.key_scales, paged.cache.value_scales):
        assert scales is not None
        scales[0] = 0
    attention = TorchAttention(1 << 16, read_back=True)
    (plan,) = attention.plans(
        paged.lengths(1), [paged.table], paged.cache, window=None, dtype=torch.float32
    )
    got = attention.attend(paged.query, None, None, paged.cache, plan, scale=64**-0.5, softcap=None)
    torch.testing.assert_close(got.double(), paged.attended(64**-0.5), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "tokens", "splits"),
    [
        (1, 8, 131072, 64),
        (1, 1, 131072, 128),
        (1, 8, 300, 2),
        (1, 8, 256, 1),
        (16, 8, 131072, 4),
        (64, 8, 131072, 1),
        (4, 1, 8192, 32),
    ],
)
def test_splits_fill_the_chip_and_are_never_short(
    rows: int, kv_heads: int, tokens: int, splits: int
) -> None:
    assert splits_for(rows, kv_heads, tokens, processors=132) == splits
