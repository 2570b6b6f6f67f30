"""How near the kernels come to what the memory allows, and to the library's."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.gpu.bench import Bench, gb_s, ratio, us
from benchmarks.gpu.lines import Line
from benchmarks.gpu.shapes import Contexts, bytes_of, narrow_weight
from servekit.kernels.gated import gated_activation_triton
from servekit.kernels.matmul import matmul_triton
from servekit.kernels.quantised_matmul import QuantisedWeight, quantised_matmul_triton
from servekit.kernels.rms_norm import add_rms_norm_triton

Call = Callable[[], object]
LLAMA_8B = {"heads": 32, "kv_heads": 8, "head_dim": 128}
TINY = {"heads": 4, "kv_heads": 2, "head_dim": 64}
STORED = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
NARROW = ("int4", "int8", "fp8", "fp8 blocks")
DECODES = (
    *((1, 1024), (1, 8192), (1, 131072), (16, 1024), (16, 8192)),
    *((64, 1024), (64, 8192), (256, 2048)),
)
LARGE = 65_536
"""Tokens of context in a batch from which decode attention is held to the memory's speed."""
ATTENTION_TARGET, INT4_TARGET = 0.85, 2.0


def copy(bench: Bench) -> Iterator[Line]:
    rate = bench.measure_copy()
    yield Line("copy", "torch, 1 GiB", "read and written", {"GB/s": rate})


def decode_attention(bench: Bench) -> Iterator[Line]:
    """Against the measured copy, and the library's attention over gathered keys and values."""
    sizes = TINY if bench.dry else LLAMA_8B
    for name, stored in STORED.items():
        for batch, context in bench.of(DECODES, ((1, 40), (3, 33))):
            found = Contexts(bench, [(1, context)] * batch, **sizes, stored=stored)
            calls = [found.ours()]
            if stored == torch.bfloat16:
                calls.append(_sdpa(bench, found, batch, context))
            taken = bench.seconds(*calls)
            rate = gb_s(found.read_bytes, taken[0])
            is_large = batch * context >= LARGE
            yield Line(
                "decode_attention",
                name,
                f"{batch} x {context:,}",
                {
                    "us": us(taken[0]),
                    "GB/s": rate,
                    "of copy": bench.share_of_copy(rate),
                    "torch SDPA us": us(taken[1]) if len(taken) > 1 else None,
                },
                reached=bench.share_of_copy(rate),
                target=ATTENTION_TARGET if is_large else None,
            )


def _sdpa(bench: Bench, found: Contexts, batch: int, context: int) -> Call:
    """Over keys and values that lie in one piece, which a paged cache's do not."""
    query = found.query.view(batch, found.heads, 1, found.head_dim)
    size = (batch, found.cache.keys.shape[2], context, found.head_dim)
    keys, values = bench.randn(*size), bench.randn(*size)
    return lambda: F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def prefill_attention(bench: Bench) -> Iterator[Line]:
    sizes = TINY if bench.dry else LLAMA_8B
    for tokens, before in bench.of(((2048, 0), (8192, 0), (2048, 30720)), ((20, 0), (9, 30))):
        found = Contexts(bench, [(tokens, tokens + before)], **sizes)
        keys, values = (part[None].contiguous() for part in found.gathered(0, torch.bfloat16))
        query = found.query.transpose(0, 1)[None].contiguous()
        theirs = _library(query, keys, values, before)
        taken = bench.seconds(found.ours(), theirs)
        pairs = tokens * before + tokens * (tokens + 1) / 2
        flops = 4 * pairs * sizes["heads"] * sizes["head_dim"]
        yield Line(
            "prefill_attention",
            "bf16",
            f"{tokens:,} after {before:,}",
            {
                "us": us(taken[0]),
                "TFLOPS": None if taken[0] is None else flops / taken[0] / 1e12,
                "torch SDPA us": us(taken[1]),
                "times as fast": ratio(taken[1], taken[0]),
            },
        )


def _library(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, before: int) -> Call:
    if before == 0:
        return lambda: F.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=True
        )
    place = torch.arange(keys.shape[2], device=keys.device)
    seen = place <= place[before:, None]
    return lambda: F.scaled_dot_product_attention(
        query, keys, values, attn_mask=seen, enable_gqa=True
    )


def matmuls(bench: Bench) -> Iterator[Line]:
    """Narrow weights against bfloat16 ones by the library."""
    (width,) = bench.of((8192,), (256,))
    dense = bench.randn(width, width)
    weights = {kind: narrow_weight(bench, kind, width, width) for kind in NARROW}
    for m in bench.of((1, 2, 4, 8, 16, 64, 256, 2048), (1, 5)):
        calls = _products(bench.randn(m, width), dense, list(weights.values()))
        library, own, *narrow = bench.seconds(*calls)
        shape = f"{m} x {width:,} x {width:,}"
        yield _product("bf16, batch-invariant", shape, own, library, None, bench, None)
        for (kind, weight), taken in zip(weights.items(), narrow, strict=True):
            target = INT4_TARGET if kind == "int4" and m <= 16 else None
            yield _product(kind, shape, taken, library, bytes_of(weight), bench, target)


def _products(x: torch.Tensor, dense: torch.Tensor, weights: list[QuantisedWeight]) -> list[Call]:
    """The library's in bfloat16, ours in bfloat16, and ours of each narrow weight."""
    return [
        lambda: F.linear(x, dense),
        lambda: matmul_triton(x, dense),
        *(partial(quantised_matmul_triton, x, weight) for weight in weights),
    ]


def _product(
    kind: str,
    shape: str,
    taken: float | None,
    library: float | None,
    moved: int | None,
    bench: Bench,
    target: float | None,
) -> Line:
    rate = None if moved is None else gb_s(moved, taken)
    values = {
        "us": us(taken),
        "bf16 torch us": us(library),
        "times as fast": ratio(library, taken),
        "GB/s": rate,
        "of copy": bench.share_of_copy(rate),
    }
    return Line("matmuls", kind, shape, values, reached=ratio(library, taken), target=target)


def elementwise(bench: Bench) -> Iterator[Line]:
    hidden, inner = bench.of((4096, 14336), (96, 128))
    for rows in bench.of((16, 256, 8192), (3,)):
        taken = bench.seconds(*_elementwise(bench, rows, hidden, inner))
        for name, own, library, moved in (
            ("add_rms_norm", taken[0], taken[1], 2 * 4 * rows * hidden),
            ("gated_activation", taken[2], taken[3], 2 * 3 * rows * inner),
        ):
            rate = gb_s(moved, own)
            yield Line(
                "elementwise",
                name,
                f"{rows:,} rows",
                {
                    "us": us(own),
                    "torch us": us(library),
                    "times as fast": ratio(library, own),
                    "of copy": bench.share_of_copy(rate),
                },
            )


def _elementwise(bench: Bench, rows: int, hidden: int, inner: int) -> list[Call]:
    """Ours and the library's, of each."""
    x, residual, weight = bench.randn(rows, hidden), bench.randn(rows, hidden), bench.randn(hidden)
    gate_up = bench.randn(rows, 2 * inner)
    return [
        lambda: add_rms_norm_triton(x, residual, weight, 1e-5),
        lambda: F.rms_norm(residual.add_(x), (hidden,), weight, 1e-5),
        lambda: gated_activation_triton(gate_up, "silu"),
        lambda: F.silu(gate_up[:, :inner]) * gate_up[:, inner:],
    ]
