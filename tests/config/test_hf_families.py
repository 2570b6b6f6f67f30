"""What each family's config.json says, and what is true without its saying so."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.config.architectures.reader import of_class
from servekit.config.hf import read_quantized, read_shape
from servekit.config.shape import Shape
from servekit.errors import ConfigError

DECODER: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_d_conv": 4}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}


def shape(model_type: str, **changes: Any) -> Shape:
    return Shape.model_validate(read_shape({"model_type": model_type, **DECODER, **changes}))


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("phi", {}, {"gated_mlp": False, "mlp_bias": True, "output_bias": True}),
        ("arcee", {"hidden_act": "relu2"}, {"gated_mlp": False, "activation": "other"}),
        ("starcoder2", {}, {"qkv_bias": True, "gated_mlp": False, "tie_word_embeddings": True}),
        ("glm4", {"attention_bias": True}, {"qkv_bias": True, "output_bias": False}),
        ("gemma2", {}, {"post_norms": True, "full_attention_layers": (1, 3)}),
        ("gemma2", {}, {"attention_logit_softcap": 50.0, "final_logit_softcap": 30.0}),
        ("gpt_oss", {}, {"sliding_window": 128, "full_attention_layers": (1, 3)}),
        ("cohere2", {}, {"full_attention_layers": (3,), "sliding_window": 4096}),
        ("exaone4", {"sliding_window_pattern": "LLG"}, {"full_attention_layers": (2, 3)}),
        ("granite", {"attention_multiplier": 0.25}, {"attention_scale": 0.25}),
        ("falcon", {"multi_query": True}, {"kv_heads": 1}),
        ("seed_oss", {"attention_out_bias": True}, {"output_bias": True}),
        ("qwen3_moe", {"num_experts": 0}, {"moe": None, "qk_norm": True}),
        ("smollm3", {}, {"planned_only": ("layers without positions",)}),
        ("mamba2", {"num_heads": 8, "head_dim": 8}, {"mixer_only_layers": (0, 1, 2, 3)}),
        ("deepseek_v3", {**LATENT, **EXPERTS}, {"head_dim": 12, "value_head_dim": 8}),
        ("deepseek_v3", {**EXPERTS, "num_nextn_predict_layers": 1}, {"mtp_layers": 1}),
        ("qwen3_5_text", {"mtp_num_hidden_layers": 1}, {"mtp_layers": 1}),
        ("gemma3n_text", {"num_kv_shared_layers": 2}, {"shared_kv_layers": (2, 3)}),
        ("mimo_v2_flash", {"v_head_dim": 4, "head_dim": 8}, {"value_head_dim": 4}),
        (
            "mimo_v2_flash",
            {"sliding_window": 8, "hybrid_layer_pattern": [0, 1, 1, 0]},
            {"kv_heads": 4, "full_kv_heads": 2, "full_attention_layers": (0, 3)},
        ),
        ("gemma4_text", {}, {"full_head_dim": 512, "full_kv_heads": None}),
        (
            "gemma4_text",
            {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
            {"full_keys_are_values": True, "full_kv_heads": 1, "kv_heads": 2},
        ),
        ("lfm2", {"full_attn_idxs": [1]}, {"mlp_only_layers": (0, 2, 3)}),
        (
            "llama4_text",
            {"attention_chunk_size": 64},
            {"window_kind": "chunked", "sliding_window": 64, "full_attention_layers": (3,)},
        ),
    ],
)
def test_a_family_has_what_its_file_leaves_out(
    model_type: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    read = shape(model_type, **changes)
    assert {key: getattr(read, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("model_type", "changes", "dense"),
    [
        ("deepseek_v3", {**EXPERTS, "first_k_dense_replace": 1}, (0,)),
        ("deepseek_v3", {**EXPERTS, "first_k_dense_replace": 1, "moe_layer_freq": 2}, (0, 1, 3)),
        ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 2}, (0, 2)),
        ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [2]}, (2,)),
        ("mimo_v2_flash", {**EXPERTS, "moe_layer_freq": [0, 1, 1, 0]}, (0, 3)),
        ("glm4_moe", {**EXPERTS, "mlp_layer_types": ["dense"] + ["sparse"] * 3}, (0,)),
        ("llama4_text", {**EXPERTS, "interleave_moe_layer_step": 2}, (0, 2)),
        ("step3p5", {**EXPERTS, "moe_layers_enum": "1,3"}, (0, 2)),
        ("ernie4_5_moe", {**EXPERTS, "moe_layer_start_index": 2}, (0, 1)),
        ("mixtral", {"num_local_experts": 8}, ()),
    ],
)
def test_layers_without_experts_are_spelled_in_many_ways(
    model_type: str, changes: dict[str, Any], dense: tuple[int, ...]
) -> None:
    read = shape(model_type, **changes)
    assert read.moe is not None
    assert read.moe.dense_layers == dense


@pytest.mark.parametrize(
    ("model_type", "changes", "width"),
    [
        ("qwen2_moe", {"num_experts": 8, "shared_expert_intermediate_size": 20}, 20),
        ("deepseek_v3", {**EXPERTS, "n_shared_experts": 2}, 24),
        ("mixtral", {"num_local_experts": 8}, 0),
        ("llama4_text", {"num_local_experts": 8}, 48),
    ],
)
def test_shared_experts_count_as_one_of_all_their_widths(
    model_type: str, changes: dict[str, Any], width: int
) -> None:
    read = shape(model_type, **changes)
    assert read.moe is not None
    assert read.moe.shared_intermediate_size == width


@pytest.mark.parametrize(
    ("model_type", "changes", "router", "renormalise", "scale"),
    [
        ("mixtral", {}, "softmax", True, 1.0),
        ("qwen2_moe", {}, "softmax", False, 1.0),
        ("qwen3_moe", {"norm_topk_prob": True}, "softmax", True, 1.0),
        ("solar_open", {}, "sigmoid", True, 1.0),
        ("dots1", {"routed_scaling_factor": 2.5}, "sigmoid", False, 2.5),
        ("hy_v3", {}, "sigmoid", True, 2.826),
        ("deepseek_v3", {"norm_topk_prob": True}, "other", True, 1.0),
    ],
)
def test_how_experts_are_chosen_and_weighted(
    model_type: str, changes: dict[str, Any], router: str, renormalise: bool, scale: float
) -> None:
    moe = shape(model_type, **EXPERTS, **changes).moe
    assert moe is not None
    assert (moe.router, moe.renormalise, moe.routed_scale) == (router, renormalise, scale)


def test_experts_that_its_files_stack_are_planned_only() -> None:
    read = shape("qwen3_vl_moe_text", **EXPERTS)
    assert read.planned_only == ("fused projections in its files",)


@pytest.mark.parametrize(
    ("model_type", "changes", "kind", "layers"),
    [
        ("qwen3_next", DELTA, "gated_delta", (0, 1, 2)),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 1}, "mamba1", (0, 2, 3)),
        ("bamba", {**MAMBA, "attn_layer_indices": [2]}, "mamba2", (0, 1, 3)),
        (
            "kimi_linear",
            {
                **LATENT,
                "linear_attn_config": {
                    "full_attn_layers": [2],
                    "kda_layers": [1, 3, 4],
                    "num_heads": 4,
                    "head_dim": 8,
                    "short_conv_kernel_size": 4,
                },
            },
            "kda",
            (0, 2, 3),
        ),
        ("nemotron_h", {"hybrid_override_pattern": "M*-E"}, "mamba2", (0,)),
    ],
)
def test_layers_with_a_state_have_no_keys_and_values(
    model_type: str, changes: dict[str, Any], kind: str, layers: tuple[int, ...]
) -> None:
    read = shape(model_type, **changes)
    assert read.state is not None
    assert (read.state.kind, read.state.layers) == (kind, layers)
    assert not {*layers} & {*read.attention_layers}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (0, 1, 2, 3)),
        ({"index_topk_freq": 2}, (0, 1, 3)),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 0}, (1, 3)),
        ({"index_topk_pattern": "FSSF"}, (0, 3)),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, (0, 2)),
    ],
)
def test_layers_without_an_indexer_take_what_another_chose(
    changes: dict[str, Any], layers: tuple[int, ...]
) -> None:
    read = shape("glm_moe_dsa", **LATENT, **EXPERTS, **changes)
    assert read.mla is not None
    assert read.mla.indexer is not None
    assert (read.mla.indexer.layers, read.mla.indexer.top_k) == (layers, 2048)


def test_sliding_layers_of_other_widths_of_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"swa_v_head_dim \(8\) must be v_head_dim \(4\)"):
        shape("mimo_v2_flash", v_head_dim=4, swa_v_head_dim=8, hybrid_layer_pattern=[0, 1, 1, 0])


def test_more_query_heads_of_sliding_layers_are_counted_and_named() -> None:
    some = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 8}
    plain = shape("step3p5", **some)
    more = shape("step3p5", **some, attention_other_setting={"num_attention_heads": 6})
    head_dim = plain.head_dim
    assert more.other_parameters - plain.other_parameters == 2 * 32 * (2 * head_dim + 1) * 2
    assert "sliding-window layers with other query heads" in " ".join(more.planned_only)


def test_a_layer_of_nemotron_h_is_one_part_only() -> None:
    read = shape("nemotron_h", hybrid_override_pattern="M*-E")
    assert read.mixer_only_layers == (0, 1)
    assert read.mlp_only_layers == (2, 3)
    assert read.dense_layers == (2,)
    assert read.moe_layers == (3,)


def test_experts_of_a_latent_space_are_as_large_as_narrower_ones() -> None:
    wide = shape("nemotron_h", hybrid_override_pattern="ME*E", moe_intermediate_size=16)
    latent = shape(
        "nemotron_h",
        hybrid_override_pattern="ME*E",
        moe_intermediate_size=16,
        moe_latent_size=8,
    )
    assert wide.moe is not None
    assert latent.moe is not None
    assert (wide.moe.intermediate_size, latent.moe.intermediate_size) == (16, 4)
    assert latent.other_parameters - wide.other_parameters == 2 * 2 * 32 * 8


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_a_decoder_may_be_nested_under_several_names(key: str) -> None:
    nested = {"model_type": "newborn_vl", key: {"model_type": "qwen2", **DECODER}}
    assert Shape.model_validate(read_shape(nested)).qkv_bias


def test_a_tower_that_is_not_known_is_estimated_and_says_so() -> None:
    tower = {"model_type": "odd_vision", "hidden_size": 8, "num_hidden_layers": 2}
    nested = {
        "model_type": "newborn_vl",
        "text_config": {"model_type": "qwen2", **DECODER},
        "vision_config": tower,
    }
    read = Shape.model_validate(read_shape(nested))
    assert read.other_parameters > 2 * 12 * 8 * 8
    assert "a tower of kind odd_vision, its size estimated" in read.planned_only


def test_positions_in_three_directions_are_one_for_text() -> None:
    scaling = {"type": "mrope", "mrope_section": [2, 1, 1]}
    read = shape("qwen2_vl", rope_scaling=scaling, rope_theta=1e6)
    assert read.rope.model_dump() == {"kind": "default", "theta": 1e6}


def test_a_rope_that_a_family_has_by_itself_gives_way_to_that_of_the_file() -> None:
    assert "yarn with mscale or without truncation" in shape("gpt_oss").planned_only
    linear = {"rope_type": "linear", "factor": 2.0}
    read = shape("gpt_oss", rope_theta=5.0, rope_scaling=linear)
    assert read.rope.model_dump() == {"kind": "linear", "theta": 5.0, "factor": 2.0}


def test_the_last_layer_of_gemma4_sees_everything_whatever_the_pattern() -> None:
    assert shape("gemma4_text", head_dim=16).full_attention_layers == (3,)


def test_a_negative_remainder_of_parameters_is_none() -> None:
    assert shape("cohere").other_parameters == 0


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([10**30, 1e308, float("nan"), 0.5, "", "x", [], [1], ["x"], {}, {"a": 1}]),
)
KEYS = sorted(
    {*DECODER, *LATENT, *EXPERTS, *DELTA, *MAMBA}
    | {"layer_types", "sliding_window", "rope_parameters", "rope_scaling", "hidden_act"}
    | {"vision_config", "text_config", "quantization_config", "moe_layer_freq", "model_type"}
)
TYPES = ("llama", "qwen2", "gemma4_text", "deepseek_v32", "qwen3_next", "nemotron_h", "jamba")


@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(KEYS), WRONG, max_size=3))
def test_whatever_a_file_says_it_is_read_or_refused_with_a_sentence(
    model_type: str, wrong: dict[str, Any]
) -> None:
    config = {"model_type": model_type, **DECODER, **LATENT, **EXPERTS, **DELTA, **MAMBA, **wrong}
    for read in (read_shape, read_quantized):
        with contextlib.suppress(ConfigError):
            read(config)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("LlamaForCausalLM", "llama"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("Gemma3ForConditionalGeneration", "gemma3"),
        ("GPTNeoXForCausalLM", "gpt_neox"),
        ("UnheardOfForCausalLM", None),
    ],
)
def test_a_file_without_a_model_type_has_that_of_its_class(name: str, kind: str | None) -> None:
    assert of_class({"architectures": [name]}) == kind
