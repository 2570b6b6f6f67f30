"""How ranks and stages share the weights, and which of them take a format."""

from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.config.schema import Config, WeightFormat
from servekit.spec.model import (
    PARTS,
    Share,
    kv_heads_per_rank,
    parameters,
    rank_weights,
    vocab_rows_per_rank,
)
from tests.conftest import tiny_config, tiny_shape
from tests.spec.served import served

MOE: dict[str, Any] = {
    "experts": 8,
    "experts_per_token": 2,
    "intermediate_size": 32,
    "shared_intermediate_size": 16,
    "shared_gate": True,
    "router": "softmax",
    "renormalise": True,
    "routed_scale": 1.0,
    "router_bias": False,
    "expert_bias": False,
    "dense_layers": (0,),
}


def fmt(weights: str, scope: str = "linears") -> dict[str, Any]:
    return {"quantization": {"weights": weights, "scope": scope}}


def tiny(**groups: Any) -> Config:
    shape = tiny_shape(**{"moe": MOE, "hidden_size": 64, **groups.pop("shape", {})})
    model = {"shape": shape, "dtype": "bfloat16"}
    return tiny_config(model=model, **groups)


def test_on_one_rank_the_parts_are_the_parameters() -> None:
    for shape in ({}, {"moe": None}, {"tie_word_embeddings": True, "other_parameters": 77}):
        config = tiny(shape=shape)
        whole, held = parameters(config.model.shape), rank_weights(config)
        parts = [part for part in PARTS if part != "mtp"]
        assert {p: getattr(held, p).parameters for p in parts} == {
            p: getattr(whole, p) for p in parts
        }


@settings(max_examples=40, deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 4]),
    heads=st.sampled_from([8, 16, 24]),
    kv_heads=st.sampled_from([4, 8]),
    width=st.integers(1, 9).map(lambda eighths: 8 * eighths),
)
def test_twice_the_ranks_halve_the_linears_and_repeat_norms_and_routers(
    tensor: int, heads: int, kv_heads: int, width: int
) -> None:
    moe = {**MOE, "intermediate_size": width}
    shape = {"heads": heads, "kv_heads": kv_heads, "intermediate_size": width, "moe": moe}
    fewer, more = (
        rank_weights(tiny(shape=shape, parallelism={"tensor": ranks}))
        for ranks in (tensor, 2 * tensor)
    )
    assert (more.norms, more.routers) == (fewer.norms, fewer.routers)
    assert 2 * more.mlp.bytes == fewer.mlp.bytes
    assert 2 * more.experts.bytes == fewer.experts.bytes
    repeated = 3 * 2 * 64 * 8 if 2 * tensor > kv_heads else 0
    assert 2 * more.attention.parameters == fewer.attention.parameters + repeated


def test_more_ranks_than_kv_heads_replicate_them() -> None:
    shape = tiny_shape(heads=8, kv_heads=2)
    assert [kv_heads_per_rank(shape, tensor) for tensor in (1, 2, 4, 8)] == [2, 1, 1, 1]


def test_latent_vectors_are_made_on_every_rank() -> None:
    one = rank_weights(served("deepseek_v3", "h200", 1)).attention.parameters
    two = rank_weights(served("deepseek_v3", "h200", 2)).attention.parameters
    assert 2 * two - one == 61 * 7168 * (1536 + 512 + 64)


def test_an_indexer_is_whole_on_every_rank_and_half_of_it_stays_in_16_bits() -> None:
    plain, indexed = (
        rank_weights(served(model, "h200", 8, quantization={"weights": "fp8"})).attention
        for model in ("deepseek_v3", "deepseek_v3_2")
    )
    queries, others = 1536 * 64 * 128, 7168 * (128 + 64)
    assert indexed.parameters - plain.parameters == 61 * (queries + others)
    scales = 64 * 128 * 4
    assert indexed.bytes - plain.bytes == 61 * (queries + scales + 2 * others)


def test_a_bias_added_after_the_sum_is_on_every_rank() -> None:
    biases = {"moe": None, "hidden_size": 32, "output_bias": True, "mlp_bias": True}
    split = {"tensor": 2}
    plain = rank_weights(tiny(shape={"moe": None, "hidden_size": 32}, parallelism=split))
    biased = rank_weights(tiny(shape=biases, parallelism=split))
    extra = biased.linear.parameters - plain.linear.parameters
    assert extra == 3 * (32 + 48 // 2 * 2 + 32)


def test_a_shared_vocabulary_is_padded_and_a_whole_one_is_not() -> None:
    shape = tiny_shape(vocab_size=300)
    assert vocab_rows_per_rank(shape, 1) == 300
    assert vocab_rows_per_rank(shape, 2) == 192


def test_expert_parallelism_divides_the_experts_alone() -> None:
    alone = rank_weights(tiny(parallelism={"data": 4}))
    spread = rank_weights(tiny(parallelism={"data": 4, "expert": 4}))
    assert 4 * spread.experts.bytes == alone.experts.bytes
    assert (spread.linear, spread.embedding) == (alone.linear, alone.embedding)


def test_whole_experts_weigh_as_much_as_cut_ones() -> None:
    cut = rank_weights(tiny(parallelism={"tensor": 2}))
    whole = rank_weights(tiny(parallelism={"tensor": 2, "expert": 2}))
    assert whole.experts == cut.experts


def test_a_format_for_experts_leaves_the_other_linears() -> None:
    plain, experts = rank_weights(tiny()), rank_weights(tiny(**fmt("nvfp4", "experts")))
    assert experts.linear == plain.linear
    assert experts.experts.bytes < plain.experts.bytes


def test_a_format_for_mlps_leaves_the_attention() -> None:
    plain, mlps = rank_weights(tiny()), rank_weights(tiny(**fmt("fp8", "mlps")))
    whole = rank_weights(tiny(**fmt("fp8")))
    assert mlps.attention == plain.attention
    quantized = ("mlp", "experts", "shared_experts")
    assert [getattr(mlps, part) for part in quantized] == [
        getattr(whole, part) for part in quantized
    ]


def test_embedding_head_norms_and_routers_keep_sixteen_bits() -> None:
    plain, small = rank_weights(tiny()), rank_weights(tiny(**fmt("q4_0")))
    kept = ("embedding", "head", "norms", "routers")
    assert [getattr(small, part) for part in kept] == [getattr(plain, part) for part in kept]


def test_what_is_outside_the_decoder_is_on_the_first_stage_only() -> None:
    config = tiny(shape={"other_parameters": 1000}, parallelism={"pipeline": 3})
    assert [rank_weights(config, stage).other.bytes for stage in range(3)] == [2000, 0, 0]


def test_a_draft_model_is_on_the_last_stage_shared_like_the_large_one() -> None:
    speculative = {
        "method": "draft",
        "tokens": 2,
        "draft_parameters": 1000,
        "draft_kv_bytes_per_token": 1,
    }
    config = tiny(parallelism={"tensor": 2, "pipeline": 2}, speculative=speculative)
    assert [rank_weights(config, stage).draft for stage in (0, 1)] == [
        Share(0, 0),
        Share(500, 1000),
    ]


MTP = {"method": "mtp", "tokens": 1, "acceptance": 0.8}


def test_layers_that_guess_are_held_only_where_they_guess() -> None:
    shape = {"mtp_layers": 1}
    assert rank_weights(tiny(shape=shape)).mtp == Share(0, 0)
    guessing = tiny(shape=shape, speculative=MTP)
    assert rank_weights(guessing).mtp.parameters == parameters(guessing.model.shape).mtp


def test_layers_that_guess_on_another_stage_need_an_embedding_too() -> None:
    alone, cut = (
        rank_weights(
            tiny(shape={"mtp_layers": 1}, speculative=MTP, parallelism={"pipeline": n}), n - 1
        )
        for n in (1, 2)
    )
    assert cut.mtp.parameters - alone.mtp.parameters == 300 * 64


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 9),
    pipeline=st.integers(1, 9),
    tied=st.booleans(),
    weights=st.sampled_from(get_args(WeightFormat)),
)
def test_the_stages_together_hold_the_model_and_a_copy_of_a_tied_table(
    layers: int, pipeline: int, tied: bool, weights: str
) -> None:
    pipeline = min(pipeline, layers)
    shape = {"layers": layers, "tie_word_embeddings": tied, "other_parameters": 11}
    config = tiny(shape=shape, parallelism={"pipeline": pipeline}, **fmt(weights))
    stages = [rank_weights(config, stage) for stage in range(pipeline)]
    held = sum(getattr(stage, part).parameters for stage in stages for part in PARTS)
    copy = 300 * 64 if tied and pipeline > 1 else 0
    assert held == parameters(config.model.shape).total + copy


@settings(max_examples=40, deadline=None)
@given(layers=st.integers(1, 8), weights=st.sampled_from([*{*get_args(WeightFormat)} - {"none"}]))
def test_more_layers_weigh_more_and_every_format_weighs_less(layers: int, weights: str) -> None:
    def bytes_of(count: int, weights: str) -> int:
        return rank_weights(tiny(shape={"layers": count, "moe": None}, **fmt(weights))).bytes

    assert bytes_of(layers, weights) < bytes_of(layers + 1, weights)
    assert bytes_of(layers, weights) < bytes_of(layers, "none")
