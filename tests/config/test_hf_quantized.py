"""How checkpoints say that their weights are quantized."""

import json
from pathlib import Path
from typing import Any

import pytest

from servekit.config.hf import read_config, read_quantized
from servekit.config.schema import Quantized
from servekit.errors import ConfigError


def compressed(**weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        (compressed(num_bits=8, type="float", strategy="channel"), "fp8"),
        (compressed(num_bits=8, type="float", strategy="block"), "fp8_block"),
        (compressed(num_bits=8, type="int", strategy="channel"), "int8"),
        (compressed(num_bits=4, type="int", strategy="group", group_size=128), "int4_g128"),
        (compressed(num_bits=4, type="int", strategy="group", group_size=32), "int4_g32"),
        (compressed(num_bits=4, type="float", strategy="group", group_size=32), "mxfp4"),
        (compressed(num_bits=4, type="float", group_size=16), "nvfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_g128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq_g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8"),
    ],
)
def test_each_method_comes_to_a_format(method: dict[str, Any], weights: str) -> None:
    read = read_quantized({"model_type": "llama", "quantization_config": method})
    assert read is not None
    assert Quantized.model_validate(read).weights == weights


def test_plain_weights_are_not_quantized() -> None:
    assert read_quantized({"model_type": "llama"}) is None
    assert read_quantized({"model_type": "llama", "quantization_config": None}) is None


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ({"quant_method": "bitsandbytes"}, "of quant_method 'bitsandbytes'.*model.quantized=null"),
        ({"quant_method": "awq", "bits": 3}, "of 3 bits in groups of 128"),
        ({"quant_method": "gptq", "bits": "4"}, "bits must be a whole number; it is '4'"),
        ({"quant_method": "modelopt", "quant_algo": "ODD"}, "quant_algo is ODD"),
        ({"quant_method": "compressed-tensors"}, "has no config_groups"),
        ({"quant_method": 8}, "quant_method must be text; it is 8"),
    ],
)
def test_a_format_that_is_not_known_says_what_to_do(method: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_quantized({"quantization_config": method})


SPARSE = {"model_type": "qwen3_moe", "num_experts": 8}


@pytest.mark.parametrize(
    ("kept", "scope"),
    [
        (["lm_head"], "linears"),
        ([f"model.layers.{layer}.self_attn*" for layer in range(48)], "experts"),
        (["lm_head", "re:.*self_attn.*"], "experts"),
        ([f"model.layers.{layer}.post_attention_layernorm" for layer in range(48)], "linears"),
        ([f"model.visual.blocks.{layer}.attn.qkv" for layer in range(27)], "linears"),
    ],
)
def test_attention_that_is_kept_leaves_the_experts(kept: list[str], scope: str) -> None:
    method = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": kept}
    assert read_quantized({**SPARSE, "quantization_config": method}) == {
        "weights": "nvfp4",
        "scope": scope,
    }


def test_attention_that_is_kept_leaves_the_mlps_where_there_are_no_experts() -> None:
    kept = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(126)]
    method = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": kept}
    read = read_quantized({"model_type": "llama", "quantization_config": method})
    assert read == {"weights": "fp8", "scope": "mlps"}


def test_a_mixture_counts_as_the_narrowest_which_most_weights_have() -> None:
    layers = {"a.q_proj": {"quant_algo": "FP8"}, "a.experts": {"quant_algo": "NVFP4"}}
    method = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert read_quantized({"quantization_config": method}) == {
        "weights": "nvfp4",
        "scope": "linears",
    }


def test_it_may_be_said_in_the_file_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_quantized(read_config(str(tmp_path))) == {"weights": "fp8", "scope": "linears"}


def test_it_may_be_nested_with_the_decoder() -> None:
    nested = {"text_config": {"quantization_config": {"quant_method": "awq"}}}
    assert read_quantized(nested) == {"weights": "int4_g128", "scope": "linears"}
