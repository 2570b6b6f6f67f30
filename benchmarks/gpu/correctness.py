"""Every operation on the device against its reference in float32."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.bench import Bench, off
from benchmarks.gpu.lines import Line
from benchmarks.gpu.shapes import BLOCK_SIZE, Contexts, narrow_weight
from servekit.kernels.gated import gated_activation_reference, gated_activation_triton
from servekit.kernels.kv import LayerCache, dequantise
from servekit.kernels.matmul import matmul_triton
from servekit.kernels.moe import moe_reference, moe_triton
from servekit.kernels.moe_routing import route_reference, route_triton
from servekit.kernels.quantised_matmul import quantised_matmul_reference, quantised_matmul_triton
from servekit.kernels.rms_norm import (
    add_rms_norm_triton,
    rms_norm_reference,
    rms_norm_triton,
)
from servekit.kernels.rope import rope_tables
from servekit.kernels.rope_and_cache import rope_and_cache_reference, rope_and_cache_triton

TOLERANCE = 2**-7
"""Of bfloat16 results, over the largest value there is: four roundings of half a unit (2^-9)."""
STORED = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
STORED_TOLERANCE = {"bf16": TOLERANCE, "fp8": 2**-4, "int8": 2**-6}
"""Of what is stored: a value between two numbers of eight bits may be rounded to either."""
EPS = 1e-5


def correctness(bench: Bench) -> Iterator[Line]:
    torch.manual_seed(0)
    yield from _elementwise(bench)
    yield from _writes(bench)
    yield from _attention(bench)
    yield from _products(bench)
    yield from _experts(bench)


def _line(what: str, shape: str, error: float, tolerance: float = TOLERANCE) -> Line:
    wrong = "" if error <= tolerance else f"off by {error:.3g}, at most {tolerance:.3g}"
    return Line("correctness", what, shape, {"off by": error}, wrong=wrong)


def _elementwise(bench: Bench) -> Iterator[Line]:
    (hidden,) = bench.of((4096,), (96,))
    for rows in bench.of((1, 33, 2048), (1, 5)):
        x, residual, weight = (bench.randn(*size) for size in ((rows, hidden),) * 2 + ((hidden,),))
        shape = f"{rows} x {hidden}"
        wanted = rms_norm_reference(x.float(), weight.float(), EPS)
        yield _line("rms_norm", shape, off(rms_norm_triton(x, weight, EPS), wanted))
        summed = (x.float() + residual.float()).to(x.dtype)
        wanted = rms_norm_reference(summed.float(), weight.float(), EPS)
        got = add_rms_norm_triton(x, residual, weight, EPS)
        yield _line("add_rms_norm", shape, off(got, wanted))
        yield _line("add_rms_norm, the sum", shape, off(residual, summed), 0.0)
        gate_up = bench.randn(rows, 2 * hidden)
        for activation in ("silu", "gelu_tanh"):
            wanted = gated_activation_reference(gate_up.float(), activation)
            got = gated_activation_triton(gate_up, activation)
            yield _line(f"gated_activation, {activation}", shape, off(got, wanted))


def _writes(bench: Bench) -> Iterator[Line]:
    heads, kv_heads, head_dim, tokens = bench.of((32, 8, 128, 300), (4, 2, 64, 5))
    blocks = tokens // BLOCK_SIZE + 2
    qkv = bench.randn(tokens, heads + 2 * kv_heads, head_dim)
    positions = torch.randint(0, 4000, (tokens,), device=bench.device)
    inverse = 10000.0 ** (-torch.arange(0, head_dim, 2, device=bench.device) / head_dim)
    tables = rope_tables(positions, inverse, 1.0, torch.bfloat16)
    slots = torch.randperm((blocks - 1) * BLOCK_SIZE, device=bench.device)[:tokens] + BLOCK_SIZE
    norm = bench.randn(heads + kv_heads, head_dim)
    sizes = {"heads": heads, "kv_heads": kv_heads, "eps": EPS}
    for name, stored in STORED.items():
        for weight in (None, norm):
            wide = LayerCache(*(_zeros(bench, (blocks, BLOCK_SIZE, kv_heads, head_dim)),) * 2)
            wide = LayerCache(wide.keys, wide.values.clone())
            cache = _empty(bench, (blocks, BLOCK_SIZE, kv_heads, head_dim), stored)
            wanted, keys, values = rope_and_cache_reference(
                qkv.float(), *(table.float() for table in tables), slots, wide,
                qk_norm=None if weight is None else weight.float(), **sizes,
            )  # fmt: skip
            got, _, _ = rope_and_cache_triton(qkv, *tables, slots, cache, qk_norm=weight, **sizes)
            what = f"rope_and_cache, {name}{'' if weight is None else ', QK norm'}"
            yield _line(f"{what}: queries", f"{tokens} tokens", off(got, wanted))
            for part, own, scales, right in (
                ("keys", cache.keys, cache.key_scales, keys),
                ("values", cache.values, cache.value_scales, values),
            ):
                kept = own.flatten(0, 1).float()[slots]
                kept = dequantise(
                    kept, None if scales is None else scales.flatten(0, 1)[slots], torch.float32
                )
                error = off(kept, right)
                yield _line(f"{what}: {part}", f"{tokens} tokens", error, STORED_TOLERANCE[name])


def _zeros(bench: Bench, size: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float32, device=bench.device)


def _empty(bench: Bench, size: tuple[int, ...], stored: torch.dtype) -> LayerCache:
    keys, values = (torch.zeros(size, device=bench.device).to(stored) for _ in range(2))
    if stored != torch.int8:
        return LayerCache(keys, values)
    scales = torch.zeros((2, *size[:-1]), device=bench.device)
    return LayerCache(keys, values, scales[0], scales[1])


def _attention(bench: Bench) -> Iterator[Line]:
    shapes = {
        "Llama 8B": (32, 8, 128),
        "7 heads a KV head": (28, 4, 128),
        "64 wide": (9, 3, 64),
        "80 wide": (8, 8, 80),
        "256 wide": (8, 4, 256),
    }
    rows = {
        "decode": bench.of(((1, 4096), (1, 1), (1, 100), (1, 8191)), ((1, 40), (1, 1))),
        "long decode": bench.of(((1, 131072),), ((1, 300),)),
        "prefill": bench.of(((2048, 2048), (100, 3000), (7, 7)), ((20, 37),)),
        "both": bench.of(((1, 700), (1, 33), (512, 2048)), ((1, 20), (9, 30))),
    }
    for name, (heads, kv_heads, head_dim) in list(shapes.items())[: 2 if bench.dry else None]:
        for kind, some in rows.items():
            for stored in STORED if name == "Llama 8B" else ("bf16",):
                found = Contexts(
                    bench, some, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                    stored=STORED[stored],
                )  # fmt: skip
                error = off(found.ours()(), found.attended())
                yield _line(f"attention, {kind}, {stored}", name, error)


def _products(bench: Bench) -> Iterator[Line]:
    n, k = bench.of((4096, 8192), (48, 256))
    for m in bench.of((1, 8, 16, 17, 200), (1, 5)):
        x = bench.randn(m, k)
        dense = bench.randn(n, k)
        wanted = x.float() @ dense.float().T
        yield _line("matmul", f"{m} x {n} x {k}", off(matmul_triton(x, dense), wanted))
        for kind in ("int4", "int8", "fp8", "fp8 blocks"):
            weight = narrow_weight(bench, kind, n, k)
            wanted = quantised_matmul_reference(x.float(), weight)
            got = quantised_matmul_triton(x, weight)
            yield _line(f"quantised_matmul, {kind}", f"{m} x {n} x {k}", off(got, wanted))


def _experts(bench: Bench) -> Iterator[Line]:
    experts, top_k, hidden, inner = bench.of((64, 8, 2048, 768), (4, 2, 32, 24))
    gate_up = bench.randn(experts, 2 * inner, hidden) * hidden**-0.5
    down = bench.randn(experts, hidden, inner) * inner**-0.5
    for tokens in bench.of((1, 40, 600), (5,)):
        x, logits = bench.randn(tokens, hidden), bench.randn(tokens, experts)
        wanted = route_reference(logits, top_k, "softmax", True)
        got = route_triton(logits, top_k, "softmax", True)
        same = bool((wanted.experts == got.experts).all())
        error = off(got.weights, wanted.weights) if same else float("inf")
        yield _line("moe_routing", f"{tokens} x {experts}", error, 1e-5)
        wide = moe_reference(x.float(), gate_up.float(), down.float(), wanted, "silu")
        error = off(moe_triton(x, gate_up, down, wanted, "silu"), wide)
        yield _line("moe", f"{tokens} tokens, {experts} experts", error)
