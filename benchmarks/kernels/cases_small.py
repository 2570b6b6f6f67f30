"""Norms, gates and sampling."""

from collections.abc import Iterator

import torch

from benchmarks.kernels.cases import Case, meta
from servekit.kernels.adjust import Adjustments, Grammar, Penalties, SparseRows
from servekit.kernels.draw import DrawTensors
from servekit.kernels.gated import gated_activation_triton
from servekit.kernels.rms_norm import add_rms_norm_triton, rms_norm_triton
from servekit.kernels.sample import sample_triton
from servekit.kernels.verify import Drafts, verify_triton

ROWS, HIDDEN, INTERMEDIATE = 64, 4096, 14336
VOCABULARIES = {"128256": 128256, "262144": 262144}


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
    for name, vocab in VOCABULARIES.items():
        logits = meta(ROWS, vocab, dtype=torch.float32)
        yield Case("sample", name, lambda x=logits: sample_triton(x, draws(ROWS)), {})
        yield Case("sample", f"{name}, adjusted", lambda x=logits: _adjusted(x), {})
        for kind, probs in (("sure drafts", None), ("drafts", logits)):
            drafts = _drafts(probs)
            yield Case(
                "verify",
                f"{name}, {kind}",
                lambda x=logits, drafts=drafts: verify_triton(x, draws(ROWS), drafts),
                {},
            )


def _drafts(probs: torch.Tensor | None) -> Drafts:
    """Three guesses a request."""
    starts, tokens = meta(ROWS // 4 + 1, dtype=torch.int32), meta(ROWS, dtype=torch.int32)
    return Drafts(starts, 4, tokens, meta(ROWS, dtype=torch.float64), probs)


def draws(rows: int) -> DrawTensors:
    """Parameters of so many rows."""
    one, ids = meta(rows, dtype=torch.float32), meta(rows, dtype=torch.int32)
    return DrawTensors(one, ids, one, one, meta(rows, dtype=torch.float64))


def _adjusted(logits: torch.Tensor) -> object:
    rows, vocab = logits.shape
    ids, value = meta(rows + 1, dtype=torch.int32), meta(rows, dtype=torch.float32)
    sparse = SparseRows(ids, ids, value)
    words = meta(rows, (vocab + 31) // 32, dtype=torch.int32)
    penalties = Penalties(sparse, value, value, value)
    return sample_triton(logits, draws(rows), Adjustments(sparse, penalties, Grammar(words, ids)))
