"""config.json files as they are published, cut down to what matters."""

import json
from pathlib import Path
from typing import Any

import pytest

from servekit.config.hf import read_config, read_dtype, read_shape
from servekit.config.shape import Shape
from servekit.errors import ConfigError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 5e5,
    "torch_dtype": "bfloat16",
}
QWEN = LLAMA | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 128}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 64,
    "sliding_window": 128,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}


def shape(config: dict[str, Any], **changes: Any) -> Shape:
    return Shape.model_validate(read_shape({**config, **changes}))


def test_llama_has_no_biases_and_divides_its_width_among_the_heads() -> None:
    read = shape(LLAMA)
    assert (read.layers, read.heads, read.kv_heads, read.head_dim) == (4, 4, 2, 8)
    assert {read.qkv_bias, read.output_bias, read.mlp_bias, read.qk_norm} == {False}
    assert not read.tie_word_embeddings
    assert read.rope.model_dump() == {"kind": "default", "theta": 5e5}


def test_without_kv_heads_every_head_has_its_own() -> None:
    assert shape(LLAMA, num_key_value_heads=None).kv_heads == 4


def test_attention_bias_of_llama_is_on_all_four_projections() -> None:
    read = shape(LLAMA, attention_bias=True, mlp_bias=True)
    assert read.qkv_bias
    assert read.output_bias
    assert read.mlp_bias


def test_qwen2_has_biases_on_query_key_and_value_only() -> None:
    read = shape(QWEN)
    assert read.qkv_bias
    assert not read.output_bias
    assert read.sliding_window is None


def test_qwen2_slides_from_max_window_layers_on_if_told_to() -> None:
    read = shape(QWEN, use_sliding_window=True, max_window_layers=3)
    assert read.sliding_window == 128
    assert read.full_attention_layers == (0, 1, 2)


def test_qwen3_norms_its_heads_which_are_128_wide_unless_said() -> None:
    read = shape(QWEN, model_type="qwen3")
    assert read.qk_norm
    assert not read.qkv_bias
    assert read.head_dim == 128


def test_mistral_slides_everywhere_where_it_has_a_window() -> None:
    read = shape(LLAMA, model_type="mistral", sliding_window=64)
    assert read.sliding_window == 64
    assert read.full_attention_layers == ()
    assert shape(LLAMA, model_type="mistral", sliding_window=None).sliding_window is None
    assert shape(LLAMA, model_type="mistral").sliding_window == 4096


def test_gemma3_sees_everything_in_every_sixth_layer() -> None:
    read = shape(GEMMA)
    assert read.full_attention_layers == (5,)
    assert read.attention_scale == 64**-0.5
    assert read.tie_word_embeddings
    assert read.norm_unit_offset
    assert read.post_norms
    assert read.scale_embeddings
    assert read.qk_norm
    assert read.activation == "gelu_tanh"
    assert read.local_rope is not None
    assert (read.rope.theta, read.local_rope.theta) == (1e6, 1e4)


def test_layer_types_say_which_layers_slide() -> None:
    types = ["full_attention"] + ["sliding_attention"] * 6
    assert shape(GEMMA, layer_types=types).full_attention_layers == (0,)


def test_a_multimodal_gemma3_is_its_language_model_with_the_defaults_it_leaves_out() -> None:
    nested = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    }
    read = shape(nested)
    assert (read.heads, read.kv_heads, read.head_dim, read.vocab_size) == (8, 4, 256, 262208)
    assert read.rope.model_dump() == {"kind": "linear", "theta": 1e6, "factor": 8.0}
    assert read.local_rope is not None
    assert read.local_rope.model_dump() == {"kind": "default", "theta": 1e4}
    assert read.full_attention_layers == (5, 11, 17, 23, 29)


LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 7.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}),
        (
            {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 7.0, "factor": 2.0}},
        ),
        (
            {"rope_theta": 7.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE}},
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 7.0, **LLAMA3_ROPE}},
        ),
        (
            {"rope_theta": 7.0, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 7.0, "factor": 4.0}},
        ),
    ],
    ids=["default", "linear", "llama3", "yarn"],
)
def test_both_spellings_of_rotary_embeddings_mean_the_same(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    assert shape(bare, **old).rope == shape(bare, **new).rope
    assert shape(bare, **old).rope.theta == 7.0


def test_yarn_stretches_positions_that_a_file_does_not_count() -> None:
    short = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    positions = shape(LLAMA).max_position_embeddings
    assert shape(LLAMA, rope_scaling=short).max_position_embeddings == max(positions, 512)
    whole = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": positions}
    assert shape(LLAMA, rope_scaling=whole).max_position_embeddings == 4 * positions


def test_yarn_has_the_defaults_of_its_paper() -> None:
    rope = shape(LLAMA, rope_scaling={"type": "yarn", "factor": 4.0}).rope.model_dump()
    assert (rope["beta_fast"], rope["beta_slow"], rope["attention_factor"]) == (32.0, 1.0, None)
    assert rope["original_max_position_embeddings"] == 512


def test_gemma3_in_the_new_spelling_has_one_rope_for_each_kind_of_layer() -> None:
    bare = {k: v for k, v in GEMMA.items() if not k.startswith("rope")}
    parameters = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 3.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5.0},
    }
    read = shape(bare, rope_parameters=parameters)
    assert read.rope.model_dump() == {"kind": "linear", "theta": 5.0, "factor": 8.0}
    assert read.local_rope is not None
    assert read.local_rope.theta == 3.0


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"hidden_act": "relu"}, "activation relu"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2}},
            "rotary embeddings of type dynamic",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}},
            "yarn with mscale or without truncation",
        ),
        ({"partial_rotary_factor": 0.5}, "rotary embeddings of 0.5 of a head"),
        ({"embedding_multiplier": 12}, "embeddings that are multiplied"),
        ({"clip_qkv": 8.0}, "queries, keys and values that are clipped"),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            "attention in both directions",
        ),
    ],
)
def test_what_the_decoder_would_compute_otherwise_is_named(
    changes: dict[str, Any], phrase: str
) -> None:
    assert phrase in shape(LLAMA, **changes).planned_only


def test_what_the_decoder_computes_needs_no_phrase() -> None:
    for config in (LLAMA, QWEN, GEMMA, LLAMA | {"model_type": "mistral"}):
        assert shape(config).planned_only == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": None, "architectures": None}, "model_type None"),
        ({"rope_scaling": {"type": "linear"}}, "linear rotary embeddings need factor"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be a whole number; it is None"),
        ({"hidden_size": "32"}, "hidden_size must be a whole number; it is '32'"),
        ({"rope_scaling": 3}, "rope_scaling must be an object; it is 3"),
        ({"num_attention_heads": -4}, "num_attention_heads must be at least 1"),
        ({"attention_bias": "yes"}, "attention_bias must be true or false; it is 'yes'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 1024"),
        ({"layer_types": ["odd"] * 4}, "layer_types names 'odd'"),
        ({"is_encoder_decoder": True}, "has an encoder; only decoders are served"),
        ({"model_type": "zamba2"}, "has attention and a state in the same layer"),
        (
            {"model_type": "gemma3_text", "layer_types": ["full_attention"]},
            "for each of 4 layers; it has 1",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_its_key(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_shape({**LLAMA, **changes})


def test_a_number_is_named_as_the_file_spells_it() -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    assert shape(bare, n_layer=5).layers == 5
    with pytest.raises(ConfigError, match="n_layer must be a whole number"):
        read_shape({**bare, "n_layer": "5"})


def test_a_model_type_that_is_not_known_is_read_as_a_plain_decoder_and_says_so() -> None:
    read = shape(LLAMA, model_type="newborn")
    assert read.layers == 4
    assert read.planned_only == ("model_type 'newborn' is read as a plain decoder",)
    with pytest.raises(ConfigError, match="lacks vocab_size, max_position_embeddings"):
        read_shape(
            {
                "model_type": "newborn",
                "hidden_size": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 16,
            }
        )


def test_the_dtype_has_two_names_and_two_places() -> None:
    assert read_dtype({"torch_dtype": "float16"}) == "float16"
    assert read_dtype({"text_config": {"dtype": "torch.bfloat16"}}) == "bfloat16"
    with pytest.raises(ConfigError, match="its dtype is float8"):
        read_dtype({"dtype": "float8"})


def test_weights_are_bfloat16_where_a_file_does_not_say() -> None:
    assert read_dtype({"quantization_config": {"quant_method": "mxfp4"}}) == "bfloat16"
    assert read_dtype({}) == "bfloat16"


def test_a_file_and_its_folder_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_config(str(tmp_path)) == read_config(str(tmp_path / "config.json")) == LLAMA


@pytest.mark.parametrize(("text", "says"), [("{", "is not JSON"), ("[]", "holds no JSON object")])
def test_a_file_that_is_no_config_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_config(str(tmp_path))
