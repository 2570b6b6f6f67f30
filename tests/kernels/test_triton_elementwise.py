"""Norms and gates by Triton against their references."""

import pytest
import torch

from servekit.kernels.gated import gated_activation_reference, gated_activation_triton
from servekit.kernels.rms_norm import (
    add_rms_norm_reference,
    add_rms_norm_triton,
    rms_norm_reference,
    rms_norm_triton,
)
from tests.kernels.devices import DEVICE, generator

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""One rounding of the dtype, where a sum in another order falls on the other side of a half."""


def random(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=generator(seed), device=DEVICE).to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True], ids=["weight alike", "weight float32"])
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (2, 5, 80), (4, 1025), (0, 16)])
def test_a_norm(dtype: torch.dtype, wide: bool, size: tuple[int, ...]) -> None:
    x = random(*size, dtype=dtype)
    weight = random(size[-1], dtype=torch.float32 if wide else dtype, seed=1)
    same(rms_norm_triton(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


def test_a_norm_of_each_head_of_a_slice() -> None:
    whole = random(4, 5, 24, dtype=torch.bfloat16)
    x, weight = whole[:, :3], random(3, 24, dtype=torch.bfloat16, seed=1)
    same(rms_norm_triton(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (3, 33), (2, 2048), (0, 8)])
def test_a_sum_and_its_norm(dtype: torch.dtype, size: tuple[int, int]) -> None:
    x, residual = random(*size, dtype=dtype), random(*size, dtype=dtype, seed=1)
    weight, own = random(size[1], dtype=dtype, seed=2), residual.clone()
    expected = add_rms_norm_reference(x, residual, weight, 1e-6)
    same(add_rms_norm_triton(x, own, weight, 1e-6), expected)
    assert torch.equal(own, residual)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = random(9, 300, dtype=torch.bfloat16), random(300, dtype=torch.bfloat16, seed=1)
    whole = rms_norm_triton(x, weight, 1e-5)
    assert torch.equal(rms_norm_triton(x[4:5], weight, 1e-5), whole[4:5])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", [(1, 2), (3, 14), (2, 2050), (0, 8)])
def test_a_gate(dtype: torch.dtype, activation: str, size: tuple[int, int]) -> None:
    x = random(*size, dtype=dtype)
    same(gated_activation_triton(x, activation), gated_activation_reference(x, activation))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_of_large_numbers_is_a_number(activation: str) -> None:
    x = torch.tensor([[-1e4, -60.0, 60.0, 1e4, 1.0, 1.0, 1.0, 1.0]], device=DEVICE)
    got = gated_activation_triton(x, activation)
    torch.testing.assert_close(got, torch.tensor([[0.0, 0.0, 60.0, 1e4]], device=DEVICE))
