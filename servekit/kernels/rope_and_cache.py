"""From a projection to a query and to the paged cache in one pass: the norm of heads (QK norm,
Henry et al. 2020), rotary positions (Su et al. 2021) and the write of keys and values.

What a step is to remember is read once and written once. `slots` say where: block * block_size +
place in the block, -1 for the padding of a captured batch, which is not written.
"""

import torch

from servekit.kernels.kv import (
    FP8_MAX,
    INT8_MAX,
    LEAST_SCALE,
    LayerCache,
    cache_pointers,
    dequantise,
    quantise,
)
from servekit.kernels.language import jit, tl, triton
from servekit.kernels.rms_norm import rms_norm_reference
from servekit.kernels.rope import apply_rope
from servekit.kernels.target import target

Attended = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Queries [N, heads, head_dim]; keys and values [N, kv_heads, head_dim] as they are stored, where
whoever attends may spare itself reading them back; None: they are in the cache alone."""


def rope_and_cache_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    cache: LayerCache,
    *,
    heads: int,
    kv_heads: int,
    qk_norm: torch.Tensor | None,
    eps: float,
) -> Attended:
    """The meaning of `rope_and_cache_triton`, and its CPU path; no slot is -1."""
    rotated = heads + kv_heads
    query_key, value = qkv[:, :rotated], qkv[:, rotated:]
    if qk_norm is not None:
        query_key = rms_norm_reference(query_key, qk_norm, eps)
    query_key = apply_rope(query_key, cos, sin)
    query, key = query_key[:, :heads], query_key[:, heads:]
    return (
        query,
        _store(key, slots, cache.keys, cache.key_scales),
        _store(value, slots, cache.values, cache.value_scales),
    )


def _store(
    new: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor | None
) -> torch.Tensor:
    """Writes the first of `new` to their slots; all of `new` as they are or would be stored."""
    stored, own_scales = quantise(new, cache.dtype)
    tokens = len(slots)
    flat = cache.flatten(0, 1)
    if cache.dtype == torch.float8_e4m3fn:
        # a copy by index of this type is not in torch: its bits are copied
        flat.view(torch.uint8).index_copy_(0, slots, stored[:tokens].view(torch.uint8))
    else:
        flat.index_copy_(0, slots, stored[:tokens])
    if scales is not None and own_scales is not None:
        scales.flatten(0, 1).index_copy_(0, slots, own_scales[:tokens])
    return new if stored is new else dequantise(stored, own_scales, new.dtype)


@jit
def _half(x_ptr, weight_ptr, offset, mask, NORM: tl.constexpr):
    """A half of a head, and of its weight, in float32."""
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    weight = x
    if NORM:
        weight = tl.load(weight_ptr + offset, mask=mask, other=0.0)
    return x, weight


@jit
def _normed(x, weight, scale, DTYPE: tl.constexpr, WIDE: tl.constexpr):
    """A weight in the model's dtype multiplies what was rounded to it; float32 comes before."""
    x = x * scale
    if WIDE:
        return (x * weight).to(DTYPE).to(tl.float32)
    return (x.to(DTYPE).to(tl.float32) * weight.to(tl.float32)).to(DTYPE).to(tl.float32)


@jit
def _nearest(x):
    """To an integer, half to even: below 2^22 the sum has no bits for a fraction."""
    return (x + 12582912.0) - 12582912.0


@jit
def _e4m3(x):
    """The bits of fp8 e4m3 of float32 within its range, rounded to nearest even, for chips without
    the type. From 2^-6 on the upper bits of float32 are those of the narrow number, but for the
    bias of the exponent; below, they count steps of 2^-9."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = _nearest(tl.abs(x) * 512.0).to(tl.int32)
    code = tl.where(size < 0x3C800000, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


# fmt: off
@jit
def _put(
    a, b, j, mask, at, scale_at, cache_ptr, scale_ptr,
    KIND: tl.constexpr, D: tl.constexpr,
    INT8_MAX: tl.constexpr, FP8_MAX: tl.constexpr, LEAST: tl.constexpr,
):
    """A head's two halves to its place in the cache."""
    if KIND == "int8":
        most = tl.maximum(tl.max(tl.abs(a), 0), tl.max(tl.abs(b), 0))
        scale = tl.maximum(most, LEAST) / INT8_MAX
        tl.store(scale_ptr + scale_at, scale)
        a = _nearest(a / scale)
        b = _nearest(b / scale)
    if KIND == "fp8" or KIND == "fp8 bytes":
        a = tl.minimum(tl.maximum(a, -FP8_MAX), FP8_MAX)
        b = tl.minimum(tl.maximum(b, -FP8_MAX), FP8_MAX)
    if KIND == "fp8 bytes":
        a = _e4m3(a)
        b = _e4m3(b)
    STORED: tl.constexpr = cache_ptr.dtype.element_ty
    tl.store(cache_ptr + at + j, a.to(STORED), mask=mask)
    tl.store(cache_ptr + at + D // 2 + j, b.to(STORED), mask=mask)


@jit(do_not_specialize=["tokens"])
def _rope_and_cache_kernel(
    qkv_ptr, cos_ptr, sin_ptr, slot_ptr, weight_ptr, query_ptr,
    keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr,
    tokens, qkv_stride, block_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr,
    INT8_MAX: tl.constexpr, FP8_MAX: tl.constexpr, LEAST: tl.constexpr,
):
    """A program a token and head: queries, then keys, each of which takes its value along."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    DTYPE: tl.constexpr = qkv_ptr.dtype.element_ty
    j = tl.arange(0, HALF)
    mask = j < D // 2
    x_ptr = qkv_ptr + token * qkv_stride + head * D
    a, weight_a = _half(x_ptr, weight_ptr + head * D, j, mask, NORM)
    b, weight_b = _half(x_ptr + D // 2, weight_ptr + head * D + D // 2, j, mask, NORM)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / D + eps)
        a = _normed(a, weight_a, scale, DTYPE, WIDE)
        b = _normed(b, weight_b, scale, DTYPE, WIDE)
    cos_a = tl.load(cos_ptr + token * D + j, mask=mask, other=0.0).to(tl.float32)
    cos_b = tl.load(cos_ptr + token * D + D // 2 + j, mask=mask, other=0.0).to(tl.float32)
    sin_a = tl.load(sin_ptr + token * D + j, mask=mask, other=0.0).to(tl.float32)
    sin_b = tl.load(sin_ptr + token * D + D // 2 + j, mask=mask, other=0.0).to(tl.float32)
    # each product is rounded, as the reference rounds it
    turned_a = (a * cos_a).to(DTYPE).to(tl.float32) + (b * sin_a).to(DTYPE).to(tl.float32)
    turned_b = (b * cos_b).to(DTYPE).to(tl.float32) + (a * sin_b).to(DTYPE).to(tl.float32)
    turned_a = turned_a.to(DTYPE)
    turned_b = turned_b.to(DTYPE)
    if head < HEADS:
        out = query_ptr + (token * HEADS + head) * D
        tl.store(out + j, turned_a, mask=mask)
        tl.store(out + D // 2 + j, turned_b, mask=mask)
    elif token < tokens:
        slot = tl.load(slot_ptr + token).to(tl.int64)
        if slot >= 0:
            kv_head = head - HEADS
            at = slot // BLOCK_SIZE * block_stride + (slot % BLOCK_SIZE * KV_HEADS + kv_head) * D
            scale_at = slot * KV_HEADS + kv_head
            v_ptr = qkv_ptr + token * qkv_stride + (head + KV_HEADS) * D
            v_a = tl.load(v_ptr + j, mask=mask, other=0.0).to(tl.float32)
            v_b = tl.load(v_ptr + D // 2 + j, mask=mask, other=0.0).to(tl.float32)
            _put(turned_a.to(tl.float32), turned_b.to(tl.float32), j, mask, at, scale_at,
                 keys_ptr, key_scales_ptr, KIND, D, INT8_MAX, FP8_MAX, LEAST)
            _put(v_a, v_b, j, mask, at, scale_at,
                 values_ptr, value_scales_ptr, KIND, D, INT8_MAX, FP8_MAX, LEAST)
# fmt: on


KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8", torch.uint8: "fp8 bytes"}


def rope_and_cache_triton(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    cache: LayerCache,
    *,
    heads: int,
    kv_heads: int,
    qk_norm: torch.Tensor | None,
    eps: float,
) -> Attended:
    """Queries, and nothing else: keys and values of the first T tokens are in the cache.

    `qkv` [N, heads + 2 * kv_heads, head_dim], rows contiguous; `cos` and `sin` [N, head_dim] of
    `rope_tables`, in its dtype; `slots` [T]; `qk_norm` [heads + kv_heads, head_dim]. The cache's
    blocks are contiguous.
    """
    tokens, _, head_dim = qkv.shape
    query = qkv.new_empty((tokens, heads, head_dim))
    if tokens == 0:
        return query, None, None
    keys, values, _ = cache_pointers(cache, target())
    none = keys  # a pointer that is not used
    _rope_and_cache_kernel[(tokens, heads + kv_heads)](
        qkv,
        cos,
        sin,
        slots,
        none if qk_norm is None else qk_norm,
        query,
        keys,
        values,
        none if cache.key_scales is None else cache.key_scales,
        none if cache.value_scales is None else cache.value_scales,
        len(slots),
        qkv.stride(0),
        cache.keys.stride(0),
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=head_dim,
        HALF=triton.next_power_of_2(head_dim // 2),
        BLOCK_SIZE=cache.block_size,
        NORM=qk_norm is not None,
        WIDE=qk_norm is not None and qk_norm.dtype != qkv.dtype,
        KIND=KINDS.get(keys.dtype, "plain"),
        INT8_MAX=INT8_MAX,
        FP8_MAX=FP8_MAX,
        LEAST=LEAST_SCALE,
        num_warps=1,
    )
    return query, None, None
