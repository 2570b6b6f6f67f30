"""The parts of a decoder layer; projections that read the same input are one matrix.

Parameters are allocated but not set: `weights.load_decoder` fills them. Gradients are never taken.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from servekit.config.shape import Shape
from servekit.kernels.kv import LayerCache
from servekit.kernels.table import Kernels

Place = dict[str, torch.Tensor]
"""Checkpoint tensors, by their Hugging Face name within the module, and where each is held: a view
into a parameter, so that copying into it loads it."""


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What a step's layers of one kind (full attention or sliding window) share."""

    kernels: Kernels
    plan: Any
    """Of `kernels.attention`."""
    slots: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


def empty(*size: int, dtype: torch.dtype, device: str) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)


class Projection(nn.Module):
    """y = x W^T + b; W [out, in]."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype, device: str
    ) -> None:
        super().__init__()
        self.weight = empty(outputs, inputs, dtype=dtype, device=device)
        self.bias = empty(outputs, dtype=dtype, device=device) if bias else None

    def forward(self, x: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        return kernels.linear(x, self.weight, self.bias)

    def places(self, **outputs: int) -> Place:
        """Checkpoint projections by name, stacked in this order, each of so many outputs."""
        held: Place = {}
        start = 0
        for name, count in outputs.items():
            held[f"{name}.weight"] = self.weight[start : start + count]
            if self.bias is not None:
                held[f"{name}.bias"] = self.bias[start : start + count]
            start += count
        return held


class Norm(nn.Module):
    """RMS norm; with a unit offset the weight is held in float32 with the 1 already added."""

    def __init__(self, *size: int, shape: Shape, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.eps = shape.rms_norm_eps
        held = torch.float32 if shape.norm_unit_offset else dtype
        self.weight = empty(*size, dtype=held, device=device)

    def forward(self, x: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        return kernels.rms_norm(x, self.weight, self.eps)

    def added(self, x: torch.Tensor, residual: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        """Of the sum, which `residual` becomes."""
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.scale = shape.attention_scale or shape.head_dim**-0.5
        self.softcap = shape.attention_logit_softcap
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.qkv = Projection(
            shape.hidden_size,
            width + 2 * kv_width,
            bias=shape.qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.out = Projection(
            width, shape.hidden_size, bias=shape.output_bias, dtype=dtype, device=device
        )
        # one row a head, so that queries and keys are normed together
        self.qk_norm = (
            Norm(self.heads + self.kv_heads, self.head_dim, shape=shape, dtype=dtype, device=device)
            if shape.qk_norm
            else None
        )

    def forward(self, x: torch.Tensor, step: LayerStep, cache: LayerCache) -> torch.Tensor:
        query, key, value = step.kernels.rope_and_cache(
            self.qkv(x, step.kernels).view(x.shape[0], -1, self.head_dim),
            step.cos,
            step.sin,
            step.slots,
            cache,
            heads=self.heads,
            kv_heads=self.kv_heads,
            qk_norm=None if self.qk_norm is None else self.qk_norm.weight,
            eps=0.0 if self.qk_norm is None else self.qk_norm.eps,
        )
        attended = step.kernels.attention.attend(
            query, key, value, cache, step.plan, scale=self.scale, softcap=self.softcap
        )
        projected: torch.Tensor = self.out(attended, step.kernels)
        return projected

    def places(self) -> Place:
        kv_width = self.kv_heads * self.head_dim
        width = self.heads * self.head_dim
        held = self.qkv.places(q_proj=width, k_proj=kv_width, v_proj=kv_width)
        held |= self.out.places(o_proj=self.out.weight.shape[0])
        if self.qk_norm is not None:
            held["q_norm.weight"] = self.qk_norm.weight[: self.heads]
            held["k_norm.weight"] = self.qk_norm.weight[self.heads :]
        return held


class Mlp(nn.Module):
    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.activation = shape.activation
        width, bias = shape.intermediate_size, shape.mlp_bias
        self.gate_up = Projection(
            shape.hidden_size, 2 * width, bias=bias, dtype=dtype, device=device
        )
        self.down = Projection(width, shape.hidden_size, bias=bias, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        gated = kernels.gated_activation(self.gate_up(x, kernels), self.activation)
        mixed: torch.Tensor = self.down(gated, kernels)
        return mixed

    def places(self) -> Place:
        width = self.down.weight.shape[1]
        held = self.gate_up.places(gate_proj=width, up_proj=width)
        return held | self.down.places(down_proj=self.down.weight.shape[0])


class Layer(nn.Module):
    """Pre-norm attention and MLP, each added to the stream; Gemma norms what is added, too."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        super().__init__()

        def norm() -> Norm:
            return Norm(shape.hidden_size, shape=shape, dtype=dtype, device=device)

        self.attention = Attention(shape, dtype, device)
        self.mlp = Mlp(shape, dtype, device)
        self.before_attention, self.before_mlp = norm(), norm()
        self.after_attention = norm() if shape.post_norms else None
        self.after_mlp = norm() if shape.post_norms else None

    def forward(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        step: LayerStep,
        cache: LayerCache,
    ) -> torch.Tensor:
        """What is to be added to `residual`, the stream, to which `x` is added here: what the layer
        before gave, None for the first. So a sum and the norm of it are one operation.
        """
        kernels = step.kernels
        normed = (
            self.before_attention(residual, kernels)
            if x is None
            else self.before_attention.added(x, residual, kernels)
        )
        attended = self.attention(normed, step, cache)
        if self.after_attention is not None:
            attended = self.after_attention(attended, kernels)
        mixed: torch.Tensor = self.mlp(self.before_mlp.added(attended, residual, kernels), kernels)
        if self.after_mlp is not None:
            mixed = self.after_mlp(mixed, kernels)
        return mixed

    def places(self) -> Place:
        held = {f"self_attn.{name}": view for name, view in self.attention.places().items()}
        held |= {f"mlp.{name}": view for name, view in self.mlp.places().items()}
        held["input_layernorm.weight"] = self.before_attention.weight
        if self.after_attention is None or self.after_mlp is None:
            held["post_attention_layernorm.weight"] = self.before_mlp.weight
        else:
            held["post_attention_layernorm.weight"] = self.after_attention.weight
            held["pre_feedforward_layernorm.weight"] = self.before_mlp.weight
            held["post_feedforward_layernorm.weight"] = self.after_mlp.weight
        return held
