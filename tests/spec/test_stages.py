"""What a rank reads, computes and exchanges: experts, windows, states, latents, stages."""

import pytest

from servekit.spec.latency import roofline, step_model
from servekit.spec.stages import IMBALANCE
from tests.conftest import tiny_shape
from tests.spec.served import served


@pytest.mark.parametrize(
    ("experts", "chosen", "tokens", "distinct"),
    [(128, 8, 1, 8.0), (128, 8, 4, 29.12), (128, 8, 32, 111.77), (8, 2, 16, 7.92)],
)
def test_a_step_reads_the_experts_that_its_tokens_are_sent_to(
    experts: int, chosen: int, tokens: int, distinct: float
) -> None:
    moe = {
        "experts": experts,
        "experts_per_token": chosen,
        "intermediate_size": 64,
        "shared_intermediate_size": 0,
        "shared_gate": False,
        "router": "softmax",
        "renormalise": True,
        "routed_scale": 1.0,
        "router_bias": False,
        "expert_bias": False,
        "dense_layers": (),
    }
    with_experts = tiny_shape(moe=moe)
    config = served("llama3_8b", "h100", model={"shape": with_experts, "max_model_len": 256})
    bound = roofline(config)
    dense = sum(each.read_s for each in bound.stages[0].products if each.hit == 1)
    every = sum(each.read_s for each in bound.stages[0].products if each.hit < 1)
    read = bound.parts(tokens, 0)["weights"] - dense
    assert read / every * experts == pytest.approx(distinct, abs=0.006)


def test_sliding_windows_bound_what_decoding_reads() -> None:
    bound = roofline(served("gemma3_4b", "h100"))
    near, far = (bound.parts(1, context)["kv"] for context in (1024, 8192))
    full_layers, all_layers = 5, 34
    assert far / near == pytest.approx((8 * full_layers + all_layers - full_layers) / all_layers)


def test_a_state_costs_the_same_at_any_context() -> None:
    shape = tiny_shape(
        state={
            "kind": "mamba1",
            "layers": (0, 1, 2),
            "inner_size": 64,
            "state_size": 16,
            "conv_kernel": 4,
            "dt_rank": 4,
            "dtype": "float32",
        }
    )
    bound = roofline(served("llama3_8b", "h100", model={"shape": shape, "max_model_len": 256}))
    short, long = bound.parts(3, 10)["kv"], bound.parts(3, 200)["kv"]
    assert short == long > 0


def test_latent_attention_reads_its_latent_and_computes_with_every_head() -> None:
    parts = roofline(served("deepseek_v2_lite", "h100")).parts(1, 1000)
    assert parts["kv"] == pytest.approx(27 * (512 + 64) * 2 * 1000 / 3350e9)
    assert parts["scores"] == pytest.approx(27 * 2 * 16 * (2 * 512 + 64) * 1000 / 989e12)


def test_chosen_tokens_bound_what_latent_attention_reads_and_computes() -> None:
    bound = roofline(served("deepseek_v3_2", "h200", 8))
    near, far = (bound.parts(1, context) for context in (2048, 102048))
    assert far["kv"] - near["kv"] == pytest.approx(61 * 128 * 2 * 100000 / 4800e9, rel=1e-6)
    index = 61 * 2 * 64 * 128 * 100000
    assert far["scores"] - near["scores"] == pytest.approx(index / 989e12, rel=1e-6)


def test_full_layers_compute_with_their_own_heads() -> None:
    bound = roofline(served("gemma4_31b", "h200"))
    near, far = (bound.parts(1, context)["scores"] for context in (1024, 11024))
    assert far - near == pytest.approx(10 * 2 * 32 * 2 * 512 * 10000 / 989e12)


def test_the_head_is_computed_for_the_last_token_of_a_prompt_only() -> None:
    bound = roofline(served("llama3_8b", "h100"))
    one, two = (bound.parts(0, 0, chunks)["compute"] for chunks in ([(64, 0)], [(32, 0)] * 2))
    assert two - one == pytest.approx(2 * 128256 * 4096 / 989e12)


def test_whole_experts_of_many_copies_see_the_tokens_of_all_copies() -> None:
    alone = served("qwen3_30b_a3b", "h100")
    shared = served("qwen3_30b_a3b", "h100", parallelism={"tensor": 1, "data": 8, "expert": 8})
    few, many = (step_model(config).stages[0].products[1] for config in (alone, shared))
    assert many.read_s == pytest.approx(few.read_s / 8)
    assert (few.group, many.group) == (1, pytest.approx(8 * IMBALANCE))
    assert many.token_s == pytest.approx(few.token_s * IMBALANCE)
    assert roofline(shared).stages[0].products[1].group == 1


def test_a_step_of_two_stages_passes_through_both() -> None:
    one = roofline(served("llama3_70b", "h100", 4))
    two = roofline(served("llama3_70b", "h100", parallelism={"tensor": 4, "pipeline": 2}))
    assert two.seconds(8, 500) == pytest.approx(one.seconds(8, 500), rel=0.001)
    assert two.pipeline == 2


def test_arithmetic_that_the_hardware_lacks_is_done_in_16_bits() -> None:
    old, new = (
        roofline(served("llama3_8b", card, quantization={"weights": "fp8"}))
        for card in ("a100_80g", "h100")
    )
    linear = 2 * 6.9793e9
    assert old.stages[0].products[0].token_s == pytest.approx(linear / 312e12, rel=0.001)
    assert new.stages[0].products[0].token_s == pytest.approx(linear / 1979e12, rel=0.001)
