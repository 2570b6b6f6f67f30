"""The repaired interpreter computes as a GPU does, and says what a GPU would not."""

import pytest
import torch

from servekit.kernels.language import jit, tl
from tests.kernels.interpreter import races

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU here")


@jit
def _binary(a_ptr, b_ptr, out_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + at, mask=at < n, other=0.0)
    b = tl.load(b_ptr + at, mask=at < n, other=0.0)
    if OP == "add":
        out = a + b
    elif OP == "mul":
        out = a * b
    else:
        out = tl.where(a < b, a, b)
    tl.store(out_ptr + at, out, mask=at < n)


@jit
def _cast(a_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, a.to(out_ptr.dtype.element_ty), mask=at < n)


@jit
def _product(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b))


@jit
def _reductions(a_ptr, out_ptr, BLOCK: tl.constexpr):
    a = tl.load(a_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr, tl.sum(a))
    tl.store(out_ptr + 1, tl.max(a))
    tl.store(out_ptr + 2, tl.min(a))


@jit
def _up_to(bound_ptr, out_ptr):
    total = 0
    for i in range(tl.load(bound_ptr)):
        total += i
    tl.store(out_ptr, total)


@jit
def _no_mask(a_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(a_ptr + at))


@jit
def _all_store_here(out_ptr):
    tl.store(out_ptr, tl.program_id(0))


def every_bfloat16() -> torch.Tensor:
    return torch.arange(65536).to(torch.uint16).view(torch.bfloat16)


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bits, but for which NaN it is."""
    numbers = ~wanted.float().isnan()
    return bool(
        (got.float().isnan() == ~numbers).all()
        and torch.equal(got.float()[numbers], wanted.float()[numbers])
    )


@pytest.mark.parametrize("op", ["add", "mul", "least"])
def test_bfloat16_is_computed_for_every_code(op: str) -> None:
    a = every_bfloat16()
    b = a[torch.randperm(len(a), generator=torch.Generator().manual_seed(0))].contiguous()
    out = torch.full_like(a, torch.nan)
    _binary[(4,)](a, b, out, len(a), OP=op, BLOCK=16384)
    wanted = {"add": a + b, "mul": a * b, "least": torch.where(a < b, a, b)}[op]
    assert same(out, wanted)


FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FP8)
def test_every_fp8_code_is_read(dtype: torch.dtype) -> None:
    a = torch.arange(256).to(torch.uint8).view(dtype)
    out = torch.empty(256)
    _cast[(1,)](a, out, 256, BLOCK=256)
    assert same(out, a.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, *FP8])
def test_casts_round_to_nearest_even_and_fp8_saturates(dtype: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(1)
    a = torch.randn(4096, generator=chance) * torch.exp2(
        torch.randint(-12, 9, (4096,), generator=chance).float()
    )
    a[:6] = torch.tensor([470.0, 500.0, 1e4, -1e5, 0.0, torch.nan])
    out = torch.empty(4096, dtype=dtype)
    _cast[(1,)](a, out, 4096, BLOCK=4096)
    most = torch.finfo(dtype).max if dtype in FP8 else torch.inf
    assert same(out, a.clamp(-most, most).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *FP8])
def test_a_product_of_matrices_is_summed_in_float32(dtype: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(2)
    a = torch.randn(16, 64, generator=chance).to(dtype)
    b = torch.randn(64, 32, generator=chance).to(dtype)
    out = torch.full((16, 32), torch.nan)
    _product[(1,)](a, b, out, M=16, N=32, K=64)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_bfloat16_is_reduced_in_float32_and_rounded() -> None:
    a = torch.randn(256, generator=torch.Generator().manual_seed(3)).bfloat16()
    out = torch.empty(3, dtype=torch.bfloat16)
    _reductions[(1,)](a, out, BLOCK=256)
    assert out.tolist() == [float(a.float().sum().bfloat16()), float(a.max()), float(a.min())]


def test_a_loop_takes_its_bound_from_memory() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    _up_to[(1,)](torch.tensor([5]), out)
    assert out.item() == 10


def test_a_missing_mask_is_named_with_its_program_and_lanes() -> None:
    a, out = torch.zeros(100), torch.zeros(128)
    with pytest.raises(IndexError, match=r"load out of bounds in program \(1, 0, 0\): 28 of 64"):
        _no_mask[(2,)](a, out, BLOCK=64)


def test_two_programs_that_store_to_one_address_are_a_race() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    _all_store_here[(2,)](out)
    with races(), pytest.raises(RuntimeError, match=r"programs \(0, 0, 0\) and \(1, 0, 0\)"):
        _all_store_here[(2,)](out)
