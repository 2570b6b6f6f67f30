"""Linear layers, and experts at the shapes of Qwen3 30B A3B."""

from collections.abc import Iterator

import torch

from benchmarks.kernels.cases import TILE_PRODUCTS, WARP_PRODUCTS, Case, meta
from servekit.kernels.matmul import matmul_triton
from servekit.kernels.moe import moe_triton
from servekit.kernels.moe_routing import Routes, route_triton
from servekit.kernels.quantised_matmul import QuantisedWeight, quantised_matmul_triton

N, K, GROUP = 4096, 4096, 128
FEW, MANY = 8, 512
EXPERTS, TOP_K, HIDDEN, INNER = 128, 8, 2048, 768


def matmul_cases() -> Iterator[Case]:
    dense = meta(N, K)
    for m in (FEW, MANY):
        x = meta(m, K)
        yield Case("matmul", f"{m} rows", lambda x=x: matmul_triton(x, dense), TILE_PRODUCTS)
        for name, weight in _weights().items():
            yield Case(
                "quantised_matmul",
                f"{name}, {m} rows",
                lambda x=x, weight=weight: quantised_matmul_triton(x, weight),
                WARP_PRODUCTS if m == FEW else TILE_PRODUCTS,
            )
    yield from _experts()


def _weights() -> dict[str, QuantisedWeight]:
    nibbles, scales = meta(N, K // 2, dtype=torch.uint8), meta(K // GROUP, N)
    zeros = meta(K // GROUP, N, dtype=torch.uint8)
    rows = meta(N, dtype=torch.float32)
    blocks = meta(N // GROUP, K // GROUP, dtype=torch.float32)
    fp8 = meta(N, K, dtype=torch.float8_e4m3fn)
    return {
        "int4": QuantisedWeight("int4", nibbles, scales),
        "int4 with zero points": QuantisedWeight("int4", nibbles, scales, zeros),
        "int8": QuantisedWeight("int8", meta(N, K, dtype=torch.int8), rows),
        "fp8": QuantisedWeight("fp8", fp8, rows),
        "fp8 in blocks": QuantisedWeight("fp8", fp8, blocks),
    }


def _experts() -> Iterator[Case]:
    logits = meta(FEW, EXPERTS)
    yield Case("moe_routing", "softmax", lambda: route_triton(logits, TOP_K, "softmax", True), {})
    gate_up, down = meta(EXPERTS, 2 * INNER, HIDDEN), meta(EXPERTS, HIDDEN, INNER)
    for tokens, products in ((FEW, WARP_PRODUCTS), (1024, TILE_PRODUCTS)):
        x, size = meta(tokens, HIDDEN), (tokens, TOP_K)
        routes = Routes(meta(*size, dtype=torch.float32), meta(*size, dtype=torch.int32))
        yield Case(
            "moe",
            f"{tokens} tokens",
            lambda x=x, routes=routes: moe_triton(x, gate_up, down, routes, "silu"),
            products,
        )
