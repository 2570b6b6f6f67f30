"""The activation peak: the fit's own table, and what moves it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.config.shape import Shape
from servekit.spec.activations import (
    SAMPLER_COPIES,
    activation_bytes,
    reference_peak,
    workspace_bytes,
)
from servekit.spec.model import GIB
from tests.conftest import tiny_config, tiny_shape
from tests.spec import log_shapes as models
from tests.spec import shapes
from tests.spec.log_shapes import on_card


@pytest.mark.parametrize(
    ("shape", "card", "tensor", "gib"),
    [
        (shapes.LLAMA_8B, "a100_80g", 1, 0.47),
        (shapes.LLAMA_8B, "h100", 1, 1.90),
        (shapes.LLAMA_8B, "h200", 1, 1.90),
        (shapes.LLAMA_70B, "a100_80g", 4, 0.49),
        (shapes.LLAMA_70B, "a100_80g", 8, 0.49),
        (shapes.LLAMA_70B, "h100", 4, 1.96),
        (shapes.LLAMA_70B, "h100", 8, 1.96),
        (shapes.LLAMA_70B, "l4", 8, 0.49),
        (models.QWEN3_30B_A3B, "a100_80g", 1, 0.64),
        (models.QWEN3_30B_A3B, "h100", 1, 2.55),
        (models.QWEN3_30B_A3B, "h100", 2, 2.50),
        (models.QWEN3_30B_A3B, "h100", 8, 2.47),
        (models.QWEN3_30B_A3B, "l4", 4, 0.62),
        (models.DEEPSEEK_V3, "h200", 8, 2.86),
        (models.DEEPSEEK_V3, "h100", 16, 2.85),
        (models.GEMMA3_27B, "a100_80g", 1, 0.96),
        (models.GEMMA3_27B, "h100", 1, 3.83),
        (models.GEMMA3_27B, "h100", 2, 3.83),
    ],
)
def test_the_peak_of_published_models(shape: Shape, card: str, tensor: int, gib: float) -> None:
    config = on_card(shape, card, 1.0, parallelism={"tensor": tensor})
    assert activation_bytes(config) / GIB == pytest.approx(gib, rel=0.05)


def test_a_large_vocabulary_makes_the_number_of_requests_the_lever() -> None:
    many = on_card(models.GEMMA3_27B, "h100", 1.0)
    few = on_card(models.GEMMA3_27B, "h100", 1.0, scheduler={"max_num_seqs": 256})
    assert activation_bytes(many) - activation_bytes(few) == pytest.approx(2.5 * GIB, rel=0.02)


def test_only_the_last_stage_samples() -> None:
    config = on_card(shapes.LLAMA_8B, "h100", 1.0, parallelism={"pipeline": 4})
    alone = activation_bytes(on_card(shapes.LLAMA_8B, "h100", 1.0))
    assert activation_bytes(config, stage=3) == alone
    assert activation_bytes(config, stage=0) / GIB == pytest.approx(1.05, rel=0.04)


def test_guessed_tokens_have_logits_too() -> None:
    speculative = {"method": "ngram", "tokens": 3, "acceptance": 0.5}
    plain = on_card(shapes.LLAMA_8B, "h100", 1.0)
    guessing = on_card(shapes.LLAMA_8B, "h100", 1.0, speculative=speculative)
    logits = 3.75 * 1024 * 128256 * 4
    assert activation_bytes(guessing) - activation_bytes(plain) == int(3 * logits)


def test_products_in_eight_bits_hold_their_input_a_second_time() -> None:
    plain = on_card(models.MISTRAL_24B, "h100", 1.0, scheduler={"max_num_seqs": 256})
    quantized = plain.model_copy(
        update={"quantization": plain.quantization.model_copy(update={"weights": "int8"})}
    )
    assert activation_bytes(quantized) - activation_bytes(plain) == 8192 * 32768


def test_a_cpu_has_no_workspace_beside_the_activations_of_its_decoder() -> None:
    config = tiny_config()
    assert activation_bytes(config) == reference_peak(config)
    assert workspace_bytes(config) == 0


def test_a_gpu_holds_what_the_reference_kernels_need_beyond_the_fit() -> None:
    config = on_card(shapes.LLAMA_8B, "l4", 1.0)
    held = activation_bytes(config) + workspace_bytes(config)
    assert held == reference_peak(config) >= 256 * 128256 * 4 * SAMPLER_COPIES


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(models.GPT_OSS_20B, id="experts with biases"),
        pytest.param(models.KIMI_VL, id="latent attention"),
        pytest.param(tiny_shape(planned_only=("biases of norms",)), id="something else"),
    ],
)
def test_what_the_decoder_cannot_run_needs_no_reference_kernels(shape: Shape) -> None:
    config = on_card(shape, "h100", 1.0, model={"max_model_len": 512})
    assert workspace_bytes(config) == 0


def test_layers_with_experts_hold_a_row_for_each_expert_of_a_token() -> None:
    config = on_card(models.QWEN3_30B_A3B, "h100", 1.0, scheduler={"max_num_seqs": 1})
    rows = 2 * 8192 * 8 * (2048 + 768)
    forward = 2 * 8192 * 4.26 * 2048
    assert activation_bytes(config) == int(forward + rows)


@settings(max_examples=200, deadline=None)
@given(
    shape=st.sampled_from([shapes.LLAMA_8B, models.QWEN3_30B_A3B, models.GEMMA3_27B]),
    card=st.sampled_from(["h100", "l4"]),
    seats=st.integers(1, 1024),
    tokens=st.integers(1024, 16384),
    length=st.integers(1, 65536),
    more=st.tuples(st.integers(0, 512), st.integers(0, 8192), st.integers(0, 65536)),
)
def test_larger_limits_never_need_less(
    shape: Shape, card: str, seats: int, tokens: int, length: int, more: tuple[int, int, int]
) -> None:
    def held(seats: int, tokens: int, length: int) -> int:
        limits = {"max_num_seqs": seats, "max_num_batched_tokens": max(seats, tokens)}
        config = on_card(shape, card, 1.0, scheduler=limits, model={"max_model_len": length})
        return activation_bytes(config) + workspace_bytes(config)

    least = held(seats, tokens, length)
    assert least <= held(seats + more[0], tokens, length)
    assert least <= held(seats, tokens + more[1], length)
    assert least <= held(seats, tokens, length + more[2])
