"""Norms and gates."""

from collections.abc import Iterator

import torch

from benchmarks.kernels.cases import Case, meta
from servekit.kernels.gated import gated_activation_triton
from servekit.kernels.rms_norm import add_rms_norm_triton, rms_norm_triton

ROWS, HIDDEN, INTERMEDIATE = 64, 4096, 14336


def small_cases() -> Iterator[Case]:
    x, weight, wide = meta(ROWS, HIDDEN), meta(HIDDEN), meta(HIDDEN, dtype=torch.float32)
    gate_up = meta(ROWS, 2 * INTERMEDIATE)
    yield Case("rms_norm", "bf16", lambda: rms_norm_triton(x, weight, 1e-5), {})
    yield Case("rms_norm", "float32 weight", lambda: rms_norm_triton(x, wide, 1e-5), {})
    yield Case("add_rms_norm", "bf16", lambda: add_rms_norm_triton(x, x, weight, 1e-5), {})
    for activation in ("silu", "gelu_tanh"):
        yield Case(
            "gated_activation",
            activation,
            lambda activation=activation: gated_activation_triton(gate_up, activation),
            {},
        )
