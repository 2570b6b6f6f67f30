"""Blocks, tokens and requests of published models, worked by the rules of block pools of vLLM."""

from dataclasses import replace

import pytest

from servekit.config.shape import Shape
from servekit.spec.memory import ledger
from servekit.spec.model import GIB
from tests.spec import log_shapes as models
from tests.spec import shapes
from tests.spec.log_shapes import on_card

ORACLES = [
    (shapes.LLAMA_8B, "a100_80g", 1, "bfloat16", 16, 131072, 55.52, 28427, 454832, 55.52),
    (shapes.LLAMA_8B, "h100", 1, "bfloat16", 16, 131072, 54.14, 27717, 443472, 54.13),
    (shapes.LLAMA_8B, "h200", 1, "bfloat16", 16, 131072, 108.68, 55646, 890336, 108.68),
    (shapes.LLAMA_8B, "l4", 1, "bfloat16", 16, 131072, 4.11, 2106, 33696, 4.11),
    (shapes.LLAMA_8B, "l4", 1, "bfloat16", 16, 131072, 10.61, 5434, 86944, 10.61),
    (shapes.LLAMA_8B, "l4", 1, "fp8", 16, 65536, 10.61, 10868, 173888, 21.23),
    (shapes.LLAMA_70B, "a100_80g", 4, "bfloat16", 16, 81920, 35.76, 29294, 468704, 57.21),
    (shapes.LLAMA_70B, "a100_80g", 8, "bfloat16", 16, 40960, 52.19, 85502, 1368032, 167.00),
    (shapes.LLAMA_70B, "h100", 4, "bfloat16", 16, 81920, 34.33, 28119, 449904, 54.92),
    (shapes.LLAMA_70B, "h100", 8, "bfloat16", 16, 40960, 50.75, 83153, 1330448, 162.41),
    (shapes.LLAMA_70B, "h200", 4, "bfloat16", 16, 81920, 88.87, 72806, 1164896, 142.20),
    (shapes.LLAMA_70B, "h200", 8, "bfloat16", 16, 40960, 105.30, 172526, 2760416, 336.96),
    (shapes.LLAMA_70B, "l4", 8, "bfloat16", 16, 40960, 2.53, 4143, 66288, 8.09),
    (shapes.LLAMA_70B, "l4", 8, "bfloat16", 16, 40960, 10.50, 17199, 275184, 33.59),
    (shapes.LLAMA_70B, "l4", 4, "bfloat16", 16, 81920, 9.70, 7943, 127088, 15.51),
    (models.QWEN3_30B_A3B, "a100_80g", 1, "bfloat16", 16, 98304, 13.47, 9193, 147088, 17.96),
    (models.QWEN3_30B_A3B, "h100", 1, "bfloat16", 16, 98304, 11.59, 7913, 126608, 15.46),
    (models.QWEN3_30B_A3B, "h200", 1, "bfloat16", 16, 98304, 66.14, 45152, 722432, 88.19),
    (models.QWEN3_30B_A3B, "h100", 2, "bfloat16", 16, 49152, 38.22, 52189, 835024, 101.93),
    (models.QWEN3_30B_A3B, "h100", 8, "bfloat16", 16, 24576, 59.59, 162709, 2603344, 317.79),
    (models.QWEN3_30B_A3B, "l4", 4, "bfloat16", 16, 24576, 11.59, 31659, 506544, 61.83),
    (models.DEEPSEEK_V3, "h200", 8, "bfloat16", 64, 70272, 41.56, 9922, 635008, 77.52),
    (models.DEEPSEEK_V3, "h200", 8, "fp8", 64, 35136, 41.56, 19845, 1270080, 155.04),
    (models.DEEPSEEK_V3, "h100", 16, "bfloat16", 64, 70272, 26.15, 6242, 399488, 48.77),
]


@pytest.mark.parametrize(
    ("shape", "card", "tensor", "dtype", "block_size", "per_token", "gib", "blocks", "tokens", "n"),
    ORACLES,
)
def test_a_cache_of_so_many_gib_holds_so_many_blocks_tokens_and_requests(
    shape: Shape,
    card: str,
    tensor: int,
    dtype: str,
    block_size: int,
    per_token: int,
    gib: float,
    blocks: int,
    tokens: int,
    n: float,
) -> None:
    kv = {"dtype": dtype, "block_size": block_size}
    layout = ledger(on_card(shape, card, gib, parallelism={"tensor": tensor}, kv=kv)).layout
    assert layout.bytes_per_token == per_token
    assert abs(layout.num_blocks - blocks) <= 1 + 0.005 * GIB / layout.bytes_per_block
    exact = replace(layout, num_blocks=blocks)
    assert exact.capacity_tokens == tokens
    assert exact.max_concurrency(8192) == pytest.approx(n, abs=0.0051)


GEMMA_27B = [
    ("a100_80g", 1, 8192, 18.88, 15466, 1670, 9.26, 75866),
    ("a100_80g", 1, 131072, 18.88, 15466, 9350, 1.65, 216808),
    ("h100", 1, 8192, 16.04, 13141, 3590, 3.66, 29986),
    ("h100", 1, 131072, 16.04, 13141, 11654, 1.13, 147796),
    ("h100", 2, 8192, 39.73, 65099, 3590, 18.13, 148549),
    ("h200", 1, 8192, 70.59, 57827, 3590, 16.11, 131955),
]


@pytest.mark.parametrize(
    ("card", "tensor", "length", "gib", "blocks", "per_request", "n", "tokens"), GEMMA_27B
)
def test_sliding_layers_are_charged_their_window_and_the_tokens_in_flight(
    card: str,
    tensor: int,
    length: int,
    gib: float,
    blocks: int,
    per_request: int,
    n: float,
    tokens: int,
) -> None:
    parallelism = {"tensor": tensor}
    model = {"max_model_len": length}
    config = on_card(models.GEMMA3_27B, card, gib, parallelism=parallelism, model=model)
    layout = ledger(config).layout
    assert layout.bytes_per_block == 1310720 // tensor
    assert abs(layout.num_blocks - blocks) <= 1 + 0.005 * GIB / layout.bytes_per_block
    assert layout.blocks_for(length) == per_request
    exact = replace(layout, num_blocks=blocks)
    assert exact.max_concurrency(length) == pytest.approx(n, abs=0.0051)
    assert exact.capacity_tokens == pytest.approx(tokens, abs=1)


def test_more_tokens_cost_only_the_full_layers_of_a_hybrid() -> None:
    config = on_card(models.GEMMA3_27B, "h100", 10.0)
    assert ledger(config).layout.bytes_per_token == 81920
    whole = on_card(models.GEMMA3_27B, "h100", 10.0, kv={"hybrid": False})
    assert ledger(whole).layout.bytes_per_token == 507904
