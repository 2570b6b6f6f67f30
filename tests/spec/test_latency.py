"""Step times: bounds against the published table, the model against published servings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.config.schema import Config
from servekit.spec.latency import TERMS, roofline, step_model
from tests.conftest import tiny_config
from tests.spec.served import DRAFT, served

BOUNDS: list[tuple[str, str, int, int, tuple[float, float, float, float]]] = [
    ("llama3_8b", "a100_80g", 1, 1, (7.36, 0.132, 0.052, 7.49)),
    ("llama3_8b", "a100_80g", 1, 32, (7.36, 4.213, 1.650, 11.57)),
    ("llama3_8b", "h100", 1, 1, (4.48, 0.080, 0.016, 4.56)),
    ("llama3_8b", "h100", 1, 32, (4.48, 2.564, 0.520, 7.04)),
    ("llama3_8b", "h200", 1, 1, (3.13, 0.056, 0.016, 3.18)),
    ("llama3_8b", "h200", 1, 32, (3.13, 1.790, 0.520, 4.92)),
    ("llama3_8b", "l4", 1, 1, (50.03, 0.895, 0.133, 50.93)),
    ("llama3_8b", "l4", 1, 32, (50.03, 28.63, 4.253, 78.66)),
    ("llama3_70b", "a100_80g", 4, 1, (17.04, 0.082, 0.116, 17.13)),
    ("llama3_70b", "a100_80g", 4, 32, (17.04, 2.633, 3.702, 19.68)),
    ("llama3_70b", "h100", 4, 1, (10.37, 0.050, 0.036, 10.42)),
    ("llama3_70b", "h100", 4, 32, (10.37, 1.603, 1.168, 11.98)),
    ("llama3_70b", "h100", 8, 1, (5.19, 0.025, 0.018, 5.21)),
    ("llama3_70b", "h100", 8, 32, (5.19, 0.801, 0.584, 5.99)),
    ("llama3_70b", "h200", 4, 1, (7.24, 0.035, 0.036, 7.27)),
    ("llama3_70b", "h200", 4, 32, (7.24, 1.118, 1.168, 8.36)),
    ("qwen3_30b_a3b", "h100", 1, 1, (1.82, 0.060, 0.008, 1.88)),
    ("qwen3_30b_a3b", "h100", 1, 32, (15.85, 1.923, 0.249, 17.77)),
    ("qwen3_30b_a3b", "h200", 1, 1, (1.27, 0.042, 0.008, 1.31)),
    ("qwen3_30b_a3b", "h200", 1, 32, (11.06, 1.342, 0.249, 12.40)),
]
"""Model, card, ranks, requests at 2048 tokens; ms of reading weights and keys, of arithmetic, and
of a step."""

PROMPTS: list[tuple[str, str, int, float, float]] = [
    ("llama3_8b", "a100_80g", 1, 95.2, 422.9),
    ("llama3_8b", "h100", 1, 30.0, 133.4),
    ("llama3_8b", "h200", 1, 30.0, 133.4),
    ("llama3_8b", "l4", 1, 245.3, 1090),
    ("llama3_70b", "a100_80g", 4, 229.1, 969.1),
    ("llama3_70b", "h100", 4, 72.3, 305.7),
    ("llama3_70b", "h100", 8, 36.1, 152.9),
    ("llama3_70b", "h200", 4, 72.3, 305.7),
    ("qwen3_30b_a3b", "h100", 1, 13.0, 71.9),
    ("qwen3_30b_a3b", "h200", 1, 13.0, 71.9),
]
"""Arithmetic of a prompt of 2048 and of 8192 tokens, ms."""


def near(milliseconds: float) -> Any:
    """Within 1 %, and within the last printed digit."""
    return pytest.approx(milliseconds, rel=0.01, abs=0.0006)


@pytest.mark.parametrize(("model", "card", "tensor", "requests", "wanted"), BOUNDS)
def test_the_bound_of_a_decode_step_is_the_published_one(
    model: str, card: str, tensor: int, requests: int, wanted: tuple[float, float, float, float]
) -> None:
    bound = roofline(served(model, card, tensor))
    parts = {name: 1e3 * seconds for name, seconds in bound.parts(requests, 2048).items()}
    assert parts["weights"] == near(wanted[0])
    assert parts["kv"] == near(wanted[1])
    assert parts["compute"] + parts["scores"] == near(wanted[2])
    assert 1e3 * bound.seconds(requests, 2048) == near(wanted[3])


@pytest.mark.parametrize(("model", "card", "tensor", "short", "long"), PROMPTS)
def test_the_bound_of_a_prompt_is_the_published_one(
    model: str, card: str, tensor: int, short: float, long: float
) -> None:
    bound = roofline(served(model, card, tensor))
    for tokens, wanted in ((2048, short), (8192, long)):
        parts = bound.parts(0, 0, [(tokens, 0)])
        assert 1e3 * (parts["compute"] + parts["prefill_attention"]) == near(wanted)


def close_loop_tpot_ms(config: Config, requests: int, prompt: int, output: int) -> float:
    """With so many requests always running, each decoded token waits for its share of prompts:
    a decode step, and `requests x prompt / output` more, halfway through the answers.
    """
    model, context = step_model(config), prompt + output / 2
    decode = model.seconds(requests, context)
    prefill = model.seconds(requests, context, [(prompt, 0)]) - decode
    return 1e3 * (decode + requests * prefill / output)


SERVINGS: list[tuple[str, Config, tuple[int, int, int], float]] = [
    ("Qwen3-32B, 2 H100, vLLM", served("qwen3_32b", "h100", 2), (32, 1024, 1024), 20.06),
    (
        "Qwen3-32B fp8, H100, TensorRT-LLM",
        served("qwen3_32b", "h100", quantization={"weights": "fp8"}),
        (32, 1024, 128),
        36.15,
    ),
    (
        "Qwen3-235B-A22B fp8, 2 H200, vLLM",
        served("qwen3_235b_a22b", "h200", 2, quantization={"weights": "fp8"}),
        (16, 1000, 100),
        52.16,
    ),
    (
        "Qwen3-235B-A22B fp8, 4 H100 with whole experts, TensorRT-LLM",
        served(
            "qwen3_235b_a22b",
            "h100",
            4,
            quantization={"weights": "fp8"},
            parallelism={"tensor": 4, "expert": 4},
        ),
        (32, 1024, 128),
        31.23,
    ),
]
"""Published measurements: what is served, (requests, prompt, output), ms per output token."""


@pytest.mark.parametrize(
    ("config", "load", "measured"), [row[1:] for row in SERVINGS], ids=[row[0] for row in SERVINGS]
)
def test_a_published_serving_is_within_the_band(
    config: Config, load: tuple[int, int, int], measured: float
) -> None:
    predicted = close_loop_tpot_ms(config, *load)
    assert abs(predicted / measured - 1) <= step_model(config).band


def test_an_engine_that_lets_prompts_wait_is_faster_per_token_than_the_model() -> None:
    """SGLang kept 64 requests at 30.12 ms a token and let their first tokens take 2.5 s: what the
    model charges to the running requests it charged to the waiting ones.
    """
    predicted = close_loop_tpot_ms(served("qwen3_32b", "h100", 2), 64, 1024, 128)
    assert 1.15 < predicted / 30.12 < 1.35


MODELS = ["llama3_8b", "qwen3_30b_a3b", "gemma3_4b", "deepseek_v2_lite", "qwen3_next_80b_a3b"]
CARDS = ["l4", "a100_80g", "h100", "b200", "mi300x", "rtx4090"]
GROWTH = st.floats(1.0, 4.0)


@given(
    model=st.sampled_from(MODELS),
    card=st.sampled_from(CARDS),
    decodes=st.floats(0.1, 300),
    context=st.floats(1, 30_000),
    new=st.floats(1, 8192),
    there=st.floats(0, 8192),
    growth=GROWTH,
)
def test_more_of_anything_never_takes_less(
    model: str,
    card: str,
    decodes: float,
    context: float,
    new: float,
    there: float,
    growth: float,
) -> None:
    step = step_model(served(model, card))
    base = step.seconds(decodes, context, [(new, there)]) * (1 - 1e-9)
    assert step.seconds(decodes * growth, context, [(new, there)]) >= base
    assert step.seconds(decodes, context * growth, [(new, there)]) >= base
    assert step.seconds(decodes, context, [(new * growth, there)]) >= base
    assert step.seconds(decodes, context, [(new, there * growth)]) >= base
    assert step.seconds(decodes, context, [(new, there), (new, there)]) >= base


@given(
    model=st.sampled_from(MODELS),
    card=st.sampled_from(CARDS),
    weights=st.sampled_from(["none", "fp8", "int8", "int4_g128", "nvfp4"]),
    decodes=st.floats(0, 300),
    context=st.floats(1, 30_000),
    new=st.floats(1, 8192),
)
def test_nothing_is_faster_than_the_roofline(
    model: str, card: str, weights: str, decodes: float, context: float, new: float
) -> None:
    config = served(model, card, quantization={"weights": weights})
    prefill = [(new, 0.0)]
    bound = roofline(config).seconds(decodes, context, prefill)
    assert bound <= step_model(config).seconds(decodes, context, prefill) * (1 + 1e-9)


@given(
    model=st.sampled_from(MODELS), growth=GROWTH, decodes=st.floats(0.1, 300), new=st.floats(0, 512)
)
def test_more_bandwidth_is_never_slower(
    model: str, growth: float, decodes: float, new: float
) -> None:
    slow = served(model, "h100")
    fast = served(model, "h100", hardware={"bandwidth_gb_s": growth * 3350})
    times = [step_model(c).seconds(decodes, 2000, [(new, 0)]) for c in (slow, fast)]
    assert times[1] <= times[0] * (1 + 1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_the_parts_of_a_step_sum_to_it(model: str) -> None:
    config = served(model, "h100", 2, parallelism={"tensor": 2, "pipeline": 2}, speculative=DRAFT)
    step, work = step_model(config), (7, 900, [(300, 50)])
    parts = step.parts(*work)
    assert sum(parts[term] for term in TERMS) == pytest.approx(step.seconds(*work))
    assert all(parts[term] > 0 for term in TERMS)


def test_an_empty_step_takes_no_time() -> None:
    step = step_model(served("llama3_8b", "h100"))
    assert step.seconds(0, 0) == 0
    assert set(step.parts(0, 0).values()) == {0.0}


@pytest.mark.parametrize(
    ("model", "card", "band", "standing"),
    [
        ("llama3_8b", "h100", 0.15, "modelled"),
        ("qwen3_30b_a3b", "h100", 0.30, "modelled"),
        ("llama3_8b", "l4", 0.225, "guess"),
        ("qwen3_30b_a3b", "mi300x", 0.45, "guess"),
    ],
)
def test_the_band_is_wider_for_experts_and_for_borrowed_tables(
    model: str, card: str, band: float, standing: str
) -> None:
    step = step_model(served(model, card))
    assert (step.band, step.standing) == (pytest.approx(band), standing)


def test_a_step_on_a_cpu_is_a_guess_that_the_published_step_is_within() -> None:
    """Sixteen requests at 330 tokens of SmolLM2-135M, two cores with AMX: 64 to 68 ms."""
    cpu = {**tiny_config().hardware.model_dump(), "bandwidth_gb_s": 20.0, "bf16_tflops": 2.0}
    step = step_model(served("smollm2_135m", "h100", hardware=cpu))
    assert (step.band, step.standing) == (0.5, "guess")
    assert step.seconds(16, 330) == pytest.approx(0.066, rel=0.2)


def test_at_best_the_ranks_of_idle_copies_compute_experts_for_the_one_that_is_not() -> None:
    alone = roofline(served("qwen3_30b_a3b", "h200"))
    helped = roofline(served("qwen3_30b_a3b", "h200", parallelism={"data": 8, "expert": 8}))
    prompt = [(4096.0, 0.0)]
    experts = 48 * 3 * 768 * 2048 * 8 * 2 * 4096 / 989e12
    saved = alone.parts(0, 0, prompt)["compute"] - helped.parts(0, 0, prompt)["compute"]
    assert saved == pytest.approx(experts * 7 / 8, rel=1e-3)
