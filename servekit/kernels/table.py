"""Which function computes each operation: torch's, or a Triton kernel of ours.

Both mean the same, as the reference in each kernel's file says. Chosen once, when an engine starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from servekit.errors import HardwareMissing, NotBuilt
from servekit.kernels.attention import Attention, TorchAttention, TritonAttention
from servekit.kernels.gated import gated_activation_reference, gated_activation_triton
from servekit.kernels.language import HAS_TRITON
from servekit.kernels.matmul import matmul_reference, matmul_triton
from servekit.kernels.moe import Experts, experts_torch, experts_triton
from servekit.kernels.rms_norm import (
    add_rms_norm_reference,
    add_rms_norm_triton,
    rms_norm_reference,
    rms_norm_triton,
)
from servekit.kernels.rope_and_cache import (
    Attended,
    rope_and_cache_reference,
    rope_and_cache_triton,
)
from servekit.kernels.sample import SampleKernel, sample_triton
from servekit.kernels.target import interpreted

OPS = (
    *("rms_norm", "add_rms_norm", "gated_activation", "rope_and_cache", "attention"),
    *("moe", "sample"),
)


@dataclass(frozen=True, slots=True)
class Kernels:
    """`by` says of each operation what computes it: torch or triton.

    `linear` is a matter of its own: a library's products are the fastest, and ours are for sums
    that do not depend on the batch.
    """

    by: Mapping[str, str]
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
    gated_activation: Callable[[torch.Tensor, str], torch.Tensor]
    rope_and_cache: Callable[..., Attended]
    attention: Attention
    moe: Experts
    sample: SampleKernel | None
    """None: one operation of torch after another, which the engine calls."""
    linear: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __str__(self) -> str:
        """rms_norm, gated_activation: triton; attention: torch"""
        kinds = dict.fromkeys(self.by.values())
        return "; ".join(
            f"{', '.join(op for op, own in self.by.items() if own == kind)}: {kind}"
            for kind in kinds
        )


def choose(
    asked: Mapping[str, str], device: str, *, gather_tokens: int, deterministic: bool = False
) -> Kernels:
    """What `asked` says of each operation: torch or triton.

    `deterministic` is for Triton alone: a token's numbers do not depend on which step it is
    computed in, or with whom. Every sum has one order: those of linear layers by our own products,
    those of experts in tiles of one size, and decoded tokens attend as prompts do, without splits,
    which is slower for long contexts.

    `gather_tokens` is for attention by torch, see `TorchAttention`. Raises NotBuilt where Triton is
    asked for and not installed, HardwareMissing where there is nothing that it runs on.
    """
    by = {op: asked[op] for op in OPS}
    if wanted := [op for op, kind in by.items() if kind == "triton"]:
        _check(wanted, device)
    functions: dict[str, dict[str, Any]] = {
        "rms_norm": {"torch": rms_norm_reference, "triton": rms_norm_triton},
        "add_rms_norm": {"torch": add_rms_norm_reference, "triton": add_rms_norm_triton},
        "gated_activation": {
            "torch": gated_activation_reference,
            "triton": gated_activation_triton,
        },
        "rope_and_cache": {"torch": rope_and_cache_reference, "triton": rope_and_cache_triton},
        "attention": {
            "torch": TorchAttention(gather_tokens, read_back=by["rope_and_cache"] == "triton"),
            "triton": TritonAttention(one_order=deterministic),
        },
        "moe": {"torch": experts_torch(), "triton": experts_triton(one_order=deterministic)},
        "sample": {"torch": None, "triton": sample_triton},
    }
    chosen = {op: functions[op][kind] for op, kind in by.items()}
    linear, kind = (matmul_triton, "triton") if deterministic else (matmul_reference, "torch")
    return Kernels(by={**by, "linear": kind}, linear=linear, **chosen)


def _check(wanted: list[str], device: str) -> None:
    if not HAS_TRITON:
        raise NotBuilt(
            f"engine.kernels asks for Triton ({', '.join(wanted)}), which is not installed; "
            "install it (pip install triton, Linux only) or use engine.kernels=torch"
        )
    if device == "cpu" and not interpreted():
        raise HardwareMissing(
            f"engine.kernels asks for Triton ({', '.join(wanted)}), whose kernels run on a GPU, "
            "and this deployment is for a CPU; use engine.kernels=torch"
        )
