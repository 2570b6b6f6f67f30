"""What hardware does not compute, what it computes slowly, and what this release does not run."""

from typing import Any

import pytest

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.config.shape import OtherRope
from servekit.planner.capability import cannot_run, refusals, slow_formats, slow_links
from tests.conftest import TINY_MOE, tiny_config, tiny_shape


def composed(words: str) -> Config:
    return load(words.split()).config


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("model=qwen3_0_6b hardware=l4", []),
        ("model=qwen3_0_6b hardware=t4", ["model.dtype"]),
        ("model=qwen3_0_6b hardware=t4 kv.dtype=fp8", ["model.dtype"]),
        ("model=qwen3_0_6b hardware=t4 model.dtype=float16 kv.dtype=bfloat16", ["kv.dtype"]),
        ("model=qwen3_0_6b hardware=t4 model.dtype=float16", []),
    ],
)
def test_bfloat16_is_refused_where_it_is_not_in_hardware(words: str, keys: list[str]) -> None:
    assert [refusal.key for refusal in refusals(composed(words))] == keys


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        ("hardware=h100 quantization=fp8", []),
        ("hardware=l4 quantization=fp8", []),
        ("hardware=a100_80g quantization=fp8", ["quantization.weights=fp8"]),
        ("hardware=a100_80g quantization=fp8_block", ["quantization.weights=fp8_block"]),
        ("hardware=a100_80g quantization=int8", []),
        ("hardware=a100_80g quantization=int4_g128", []),
        ("hardware=h100 quantization=nvfp4", ["quantization.weights=nvfp4"]),
        ("hardware=b200 quantization=nvfp4", []),
        ("hardware=a100_80g kv.dtype=fp8", ["kv.dtype=fp8"]),
        ("hardware=h100 kv.dtype=fp8", []),
        ("hardware=h100 kv.dtype=nvfp4", ["kv.dtype=nvfp4"]),
    ],
)
def test_a_format_that_only_saves_memory_is_said_to(words: str, slow: list[str]) -> None:
    found = list(slow_formats(composed(f"model=llama3_8b {words}")))
    assert [line.split(":")[0] for line in found] == slow


def test_a_slow_format_names_the_card_and_what_it_lacks() -> None:
    (line,) = slow_formats(composed("model=llama3_8b hardware=a100_80g quantization=fp8"))
    assert "A100 80 GB" in line
    assert "(compute capability 8.0) has no fp8 arithmetic (compute capability 8.9)" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hardware=rtx4090", []),
        ("hardware=rtx4090 parallelism=tp2", ["through the host"]),
        ("hardware=rtx4090 parallelism.pipeline=2", []),
        ("hardware=h100 parallelism=tp8", []),
        ("hardware=h100 parallelism=tp8_pp2", ["cross the network"]),
        ("hardware=h100 parallelism.data=16", []),
    ],
)
def test_what_leaves_the_link_between_devices_is_said(words: str, said: list[str]) -> None:
    found = list(slow_links(composed(f"model=llama3_8b {words}")))
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


@pytest.mark.parametrize(
    "words",
    [
        "+recipe=chat_smollm2",
        "+recipe=chat_gemma3_270m",
        "+recipe=chat_llama8b",
        "model=mixtral_8x7b hardware=b200",
        "model=qwen3_30b_a3b hardware=h100",
    ],
)
def test_the_models_of_this_release_run(words: str) -> None:
    assert cannot_run(composed(words)) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("parallelism=tp2", "2 devices"),
        ("parallelism.data=2", "2 devices"),
        ("quantization=fp8", "quantization.weights=fp8"),
        ("kv.dtype=int4", "kv.dtype=int4"),
        ("speculative=ngram", "speculative.method=ngram"),
        ("model=deepseek_v3 hardware=b300 parallelism=tp8", "latent attention"),
        ("model=gpt_oss_20b hardware=b200", "experts with biases"),
        ("model=gpt_oss_20b hardware=b200", "experts chosen in another way"),
        ("model=qwen3_next_80b_a3b hardware=b200", "layers with a state"),
    ],
)
def test_what_this_release_does_not_run_has_its_reason(words: str, reason: str) -> None:
    found = cannot_run(composed(f"model=llama3_8b hardware=h100 {words}"))
    assert any(reason in line for line in found)


@pytest.mark.parametrize("hybrid", [False, True])
def test_windowed_layers_run_at_full_length_and_at_that_of_their_window(hybrid: bool) -> None:
    shape = tiny_shape(sliding_window=32, full_attention_layers=(2,))
    assert cannot_run(tiny_config(model={"shape": shape}, kv={"hybrid": hybrid})) == []


@pytest.mark.parametrize(
    "change",
    [
        {"gated_mlp": False},
        {"value_head_dim": 16},
        {"activation": "other"},
        {"rope": OtherRope(kind="other")},
        {"shared_kv_layers": (2,)},
        {"full_kv_heads": 1},
        {"full_head_dim": 16},
        {"full_keys_are_values": True},
        {"mlp_only_layers": (1,)},
        {"mixer_only_layers": (1,)},
        {"sliding_window": 32, "window_kind": "chunked"},
        {"planned_only": ("attention sinks",)},
        {"moe": {**TINY_MOE, "router": "other"}},
        {"moe": {**TINY_MOE, "router_bias": True}},
        {"moe": {**TINY_MOE, "expert_bias": True}},
    ],
)
def test_each_number_beyond_the_decoder_is_a_reason(change: dict[str, Any]) -> None:
    assert len(cannot_run(tiny_config(model={"shape": tiny_shape(**change)}))) == 1
