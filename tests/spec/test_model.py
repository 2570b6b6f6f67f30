"""Published parameter counts, weight gibibytes and bytes per token of known models."""

import pytest

from servekit.config.shape import Shape
from servekit.spec.model import (
    GIB,
    kv_bytes_per_token,
    parameters,
    vocab_rows_per_rank,
    weights_bytes,
)
from tests.conftest import tiny_shape
from tests.spec import shapes


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        pytest.param(shapes.LLAMA_8B, 8_030_261_248, id="Llama-3.1-8B"),
        pytest.param(shapes.LLAMA_70B, 70_553_706_496, id="Llama-3.1-70B"),
        pytest.param(shapes.QWEN3_8B, 8_190_735_360, id="Qwen3-8B"),
        pytest.param(shapes.QWEN25_7B, 7_615_616_512, id="Qwen2.5-7B"),
        pytest.param(shapes.MISTRAL_7B, 7_241_732_096, id="Mistral-7B-v0.1"),
        pytest.param(shapes.SMOLLM2_135M, 134_515_008, id="SmolLM2-135M"),
        pytest.param(shapes.GEMMA3_270M, 268_098_176, id="Gemma-3-270M"),
    ],
)
def test_parameters_are_those_that_were_published(shape: Shape, published: int) -> None:
    assert parameters(shape).total == published


@pytest.mark.parametrize(
    ("shape", "tensor", "per_token", "weights_gib"),
    [
        pytest.param(shapes.LLAMA_8B, 1, 131_072, 14.99, id="8B"),
        pytest.param(shapes.LLAMA_70B, 4, 81_920, 32.89, id="70B over 4"),
        pytest.param(shapes.LLAMA_70B, 8, 40_960, 16.46, id="70B over 8"),
    ],
)
def test_one_rank_holds_what_engines_logged(
    shape: Shape, tensor: int, per_token: int, weights_gib: float
) -> None:
    assert kv_bytes_per_token(shape, "bfloat16", tensor) == per_token
    held = weights_bytes(shape, "bfloat16", tensor) / GIB
    assert held == pytest.approx(weights_gib, rel=0.005)


@pytest.mark.parametrize(
    ("shape", "per_token"),
    [(shapes.QWEN25_7B, 57_344), (shapes.LLAMA_70B, 327_680), (shapes.QWEN3_8B, 147_456)],
    ids=["Qwen2.5-7B", "Llama-3.1-70B", "Qwen3-8B"],
)
def test_a_token_takes_the_published_bytes(shape: Shape, per_token: int) -> None:
    assert kv_bytes_per_token(shape, "bfloat16") == per_token


def test_more_ranks_than_kv_heads_replicate_them() -> None:
    shape = tiny_shape(heads=8, kv_heads=2)
    sizes = [kv_bytes_per_token(shape, "bfloat16", tensor) for tensor in (1, 2, 4, 8)]
    assert sizes == [sizes[0], sizes[0] // 2, sizes[0] // 2, sizes[0] // 2]


def test_norms_are_on_every_rank_and_linears_are_shared() -> None:
    shape = tiny_shape()
    whole, half = parameters(shape), parameters(shape, tensor=2)
    assert half.norms == whole.norms
    assert (half.attention, half.mlp) == (whole.attention // 2, whole.mlp // 2)


def test_a_bias_added_after_the_sum_is_on_every_rank() -> None:
    plain, biased = tiny_shape(), tiny_shape(output_bias=True, mlp_bias=True)
    extra = parameters(biased, 2).total - parameters(plain, 2).total
    assert extra == 3 * (32 + 48 // 2 * 2 + 32)


def test_a_shared_vocabulary_is_padded_and_a_whole_one_is_not() -> None:
    shape = tiny_shape(vocab_size=300)
    assert vocab_rows_per_rank(shape, 1) == 300
    assert vocab_rows_per_rank(shape, 2) == 192


def test_float32_keys_and_values_take_twice_the_bytes() -> None:
    shape = tiny_shape()
    assert kv_bytes_per_token(shape, "float32") == 2 * kv_bytes_per_token(shape, "bfloat16")
