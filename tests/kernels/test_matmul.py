"""The linear layer by Triton: right, and the same for a row whatever the batch."""

import pytest
import torch

from servekit.kernels import matmul
from servekit.kernels.matmul import matmul_triton, span_of
from tests.kernels.devices import DEVICE, generator
from tests.kernels.interpreter import races

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative to the largest result: sums in float32 in another order, then one rounding."""


def random(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=generator(seed), device=DEVICE).to(dtype)


@pytest.fixture(autouse=True)
def nan_in_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda size, **kw: torch.full(size, torch.nan, **kw))


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    """`expected` is float64."""
    scale = expected.abs().max().item() if expected.numel() else 0.0
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("m", "n", "k"), [(1, 33, 40), (3, 1, 1), (17, 70, 1500), (129, 65, 96)])
def test_a_product(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    x, weight = random(m, k, dtype=dtype), random(n, k, dtype=dtype, seed=1)
    bias = random(n, dtype=dtype, seed=2)
    expected = x.double() @ weight.double().T
    near(matmul_triton(x, weight), expected)
    near(matmul_triton(x, weight, bias), expected + bias.double())


def test_more_dimensions_and_a_slice() -> None:
    x, weight = random(2, 3, 50), random(7, 80, seed=1)[:, 20:70]
    got = matmul_triton(x, weight)
    near(got.view(6, 7), x.view(6, 50).double() @ weight.double().T)
    assert got.shape == (2, 3, 7)


def test_no_rows() -> None:
    assert matmul_triton(random(0, 8), random(5, 8)).shape == (0, 5)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("k", [100, 2100], ids=["one span", "three spans"])
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype, k: int) -> None:
    x, weight = random(140, k, dtype=dtype), random(40, k, dtype=dtype, seed=1)
    bias = random(40, dtype=dtype, seed=2)
    whole = matmul_triton(x, weight, bias)  # one program takes the spans in turn
    for rows in (slice(0, 1), slice(5, 8), slice(139, 140), slice(60, 125)):
        assert torch.equal(matmul_triton(x[rows], weight, bias), whole[rows])


def test_spans_follow_from_k_alone() -> None:
    spans = {1: 128, 64: 128, 1000: 1024, 1024: 1024, 4096: 1024, 14336: 1792}
    assert {k: span_of(k, 128) for k in spans} == spans


def test_no_two_programs_write_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SPAN", 128)
    with races():
        matmul_triton(random(65, 300), random(40, 300))
