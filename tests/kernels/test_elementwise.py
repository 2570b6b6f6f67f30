"""Norm, rotary embedding and gate against their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from servekit.kernels.gated import gated_activation_reference as gated_activation
from servekit.kernels.rms_norm import rms_norm_reference as rms_norm
from servekit.kernels.rope import apply_rope, rope_tables


@pytest.mark.parametrize("width", [1, 7, 64])
def test_rms_norm_divides_by_the_root_of_the_mean_square(width):
    x, weight = torch.randn(5, width), torch.randn(width)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), expected)


def test_rms_norm_takes_its_mean_in_float32():
    x = torch.full((1, 4096), 0.01, dtype=torch.bfloat16)
    out = rms_norm(x, torch.ones(4096, dtype=torch.bfloat16), 1e-12)
    assert torch.equal(out, torch.ones_like(out))


def test_a_float32_weight_is_applied_before_the_one_rounding():
    x = torch.randn(3, 32).bfloat16()
    weight = 1 + 0.3 * torch.randn(32)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert torch.equal(rms_norm(x, weight, 1e-6), exact.float().bfloat16())


def test_a_weight_a_head_norms_each_head_by_its_own():
    x, weight = torch.randn(4, 3, 8), torch.randn(3, 8)
    whole = rms_norm(x, weight, 1e-6)
    each = torch.stack([rms_norm(x[:, head], weight[head], 1e-6) for head in range(3)], 1)
    torch.testing.assert_close(whole, each)


def test_rope_turns_each_pair_by_position_times_frequency():
    x = torch.randn(3, 2, 6)
    positions = torch.tensor([0, 5, 1000])
    inv_freq = torch.tensor([1.0, 0.1, 0.01])
    out = apply_rope(x, *rope_tables(positions, inv_freq, 1.0, torch.float32))
    pairs = torch.view_as_complex(torch.stack((x[..., :3], x[..., 3:]), -1))
    turned = pairs * torch.polar(torch.ones(3, 3), positions[:, None] * inv_freq)[:, None]
    torch.testing.assert_close(out, torch.cat((turned.real, turned.imag), -1), atol=1e-4, rtol=0)


def test_the_rope_scale_multiplies_both_tables():
    x = torch.randn(2, 1, 4)
    positions, inv_freq = torch.tensor([3, 4]), torch.tensor([1.0, 0.5])
    plain = apply_rope(x, *rope_tables(positions, inv_freq, 1.0, torch.float32))
    scaled = apply_rope(x, *rope_tables(positions, inv_freq, 1.3, torch.float32))
    torch.testing.assert_close(scaled, 1.3 * plain)


def test_the_input_of_rope_is_left_alone():
    x = torch.randn(2, 1, 4)
    before = x.clone()
    tables = rope_tables(torch.tensor([3, 4]), torch.tensor([1.0, 0.5]), 1.0, torch.float32)
    apply_rope(x, *tables)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("activation", "gate"),
    [("silu", F.silu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))],
)
def test_the_gate_half_is_activated_and_multiplies_the_other(activation, gate):
    x = torch.randn(3, 10)
    torch.testing.assert_close(gated_activation(x, activation), gate(x[:, :5]) * x[:, 5:])


def test_silu_of_one_is_what_it_should_be():
    out = gated_activation(torch.tensor([[1.0, 2.0]]), "silu")
    assert out.item() == pytest.approx(2 / (1 + math.exp(-1)))
