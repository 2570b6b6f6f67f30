"""Norm of heads, rotation and the write to the cache in one pass, against the torch path."""

import pytest
import torch

from servekit.kernels.kv import LayerCache, dequantise, quantise
from servekit.kernels.rope import rope_tables
from servekit.kernels.rope_and_cache import rope_and_cache_reference, rope_and_cache_triton
from servekit.kernels.target import Target
from tests.kernels.devices import DEVICE, generator
from tests.kernels.interpreter import races

BLOCKS, BLOCK_SIZE = 5, 8
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
STORED = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


def fresh_cache(kv_heads: int, head_dim: int, dtype: torch.dtype) -> LayerCache:
    """Memory that holds anything: NaN where there is one."""
    size = (BLOCKS, BLOCK_SIZE, kv_heads, head_dim)

    def part() -> torch.Tensor:
        filled = torch.full(size, torch.nan, device=DEVICE)
        return filled.nan_to_num(77).to(dtype) if dtype == torch.int8 else filled.to(dtype)

    if dtype != torch.int8:
        return LayerCache(part(), part())
    scales = torch.full((2, *size[:-1]), torch.nan, device=DEVICE)
    return LayerCache(part(), part(), scales[0], scales[1])


def case(
    tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """qkv, cos, sin and slots, some of them out of order."""
    chance = generator(tokens * 100 + head_dim)
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim, generator=chance, device=DEVICE)
    positions = torch.randint(0, 4000, (tokens,), generator=chance, device=DEVICE)
    inv_freq = 10000.0 ** (-torch.arange(0, head_dim, 2, device=DEVICE) / head_dim)
    cos, sin = rope_tables(positions, inv_freq, 1.0, dtype)
    own = torch.randperm((BLOCKS - 1) * BLOCK_SIZE, generator=chance, device=DEVICE)[:tokens]
    return qkv.to(dtype), cos, sin, own + BLOCK_SIZE


def wide(cache: LayerCache, slots: torch.Tensor) -> list[torch.Tensor]:
    """Keys and values at these slots, float32."""
    parts = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    return [
        dequantise(
            stored.flatten(0, 1).float()[slots],
            None if scales is None else scales.flatten(0, 1)[slots],
            torch.float32,
        )
        for stored, scales in parts
    ]


def untouched(cache: LayerCache, slots: torch.Tensor) -> bool:
    """All other memory still holds what it did."""
    others = torch.ones(BLOCKS * BLOCK_SIZE, dtype=torch.bool, device=DEVICE)
    others[slots] = False
    parts = [part.flatten(0, 1)[others].float() for part in (cache.keys, cache.values)]
    return all(bool((part.isnan() | (part == 77)).all()) for part in parts)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("norm", [None, "same", "float32"])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_dim"), [(1, 4, 1, 64), (7, 3, 3, 80), (3, 4, 2, 96)]
)
def test_it_is_what_the_torch_path_does(
    tokens: int, heads: int, kv_heads: int, head_dim: int, norm: str | None, stored: torch.dtype
) -> None:
    dtype = torch.float32 if stored == torch.float32 else torch.bfloat16
    qkv, cos, sin, slots = case(tokens, heads, kv_heads, head_dim, dtype)
    weight = None
    if norm is not None:
        weight = torch.rand(heads + kv_heads, head_dim, generator=generator(1), device=DEVICE) + 0.5
        weight = weight.to(dtype if norm == "same" else torch.float32)
    sizes = {"heads": heads, "kv_heads": kv_heads, "qk_norm": weight, "eps": 1e-5}
    expected, got = (fresh_cache(kv_heads, head_dim, stored) for _ in range(2))
    query, key, value = rope_and_cache_reference(qkv, cos, sin, slots, expected, **sizes)
    with races():
        own, _, _ = rope_and_cache_triton(qkv, cos, sin, slots, got, **sizes)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(own, query, rtol=tolerance, atol=tolerance)
    # a value that lies between two numbers of eight bits may be rounded to either
    step = {torch.int8: 0.04, torch.float8_e4m3fn: 0.13}.get(stored, tolerance)
    for mine, theirs in zip(wide(got, slots), wide(expected, slots), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=step, atol=step)
        assert (mine != theirs).float().mean() < (0.02 if stored != torch.float32 else 1)
    assert untouched(got, slots)
    assert key is not None
    assert value is not None
    for mine, theirs in zip((key, value), wide(expected, slots), strict=True):
        assert torch.equal(mine.float(), theirs.to(dtype).float())


@pytest.mark.parametrize("padding", ["behind", "minus one"])
def test_padding_is_rotated_and_not_stored(padding: str) -> None:
    qkv, cos, sin, slots = case(5, 2, 1, 64, torch.bfloat16)
    cache = fresh_cache(1, 64, torch.bfloat16)
    real = slots[:3]
    given = real if padding == "behind" else torch.cat((real, real.new_tensor([-1, -1])))
    sizes = {"heads": 2, "kv_heads": 1, "qk_norm": None, "eps": 0.0}
    query, _, _ = rope_and_cache_triton(qkv, cos, sin, given, cache, **sizes)
    assert query.isfinite().all()
    assert all(part.isfinite().all() for part in wide(cache, real))
    assert untouched(cache, real)


def test_a_step_of_no_tokens_is_nothing() -> None:
    qkv, cos, sin, slots = case(1, 2, 1, 64, torch.bfloat16)
    cache = fresh_cache(1, 64, torch.bfloat16)
    sizes = {"heads": 2, "kv_heads": 1, "qk_norm": None, "eps": 0.0}
    query, _, _ = rope_and_cache_triton(qkv[:0], cos[:0], sin[:0], slots[:0], cache, **sizes)
    assert query.shape == (0, 2, 64)


def test_int8_is_within_half_a_step_of_each_head() -> None:
    new = torch.randn(6, 3, 64, generator=generator(2), device=DEVICE)
    new[0, 0] = 0
    stored, scales = quantise(new, torch.int8)
    assert scales is not None
    error = (dequantise(stored, scales, torch.float32) - new).abs()
    assert (error <= 0.5001 * scales[..., None]).all()
    assert stored.abs().amax(-1).flatten()[1:].eq(127).all()


def test_fp8_is_written_as_bytes_where_the_chip_has_no_such_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every float16 there is, which has all that e4m3 rounds to and all halves between."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.float16).float()
    values = every[every.isfinite()].view(-1, 1, 64)
    tokens = len(values)
    ampere = Target("sm_80", "", 108, 166912)
    monkeypatch.setattr("servekit.kernels.rope_and_cache.target", lambda: ampere)
    qkv = torch.cat((torch.zeros_like(values), torch.zeros_like(values), values), 1)
    size = (tokens, 1, 1, 64)
    cache = LayerCache(*(torch.full(size, torch.nan).to(torch.float8_e4m3fn) for _ in range(2)))
    table = torch.zeros(tokens, 64)
    slots = torch.arange(tokens)
    sizes = {"heads": 1, "kv_heads": 1, "qk_norm": None, "eps": 0.0}
    rope_and_cache_triton(qkv, table, table, slots, cache, **sizes)
    expected, _ = quantise(values, torch.float8_e4m3fn)
    assert torch.equal(cache.values.view(-1, 1, 64).view(torch.uint8), expected.view(torch.uint8))


def test_fp8_saturates() -> None:
    stored, scales = quantise(torch.tensor([1e4, -1e4, 448.0]), torch.float8_e4m3fn)
    assert scales is None
    assert stored.float().tolist() == [448.0, -448.0, 448.0]
