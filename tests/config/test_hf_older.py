"""Families with learned positions or ALiBi, and files that nest their numbers."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from servekit.config.hf import read_shape
from servekit.config.shape import Shape
from servekit.errors import ConfigError
from servekit.spec.model import parameters

GPT: dict[str, Any] = {
    "vocab_size": 300,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
}
OPT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "ffn_dim": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 64,
}
DBRX: dict[str, Any] = {
    "vocab_size": 300,
    "d_model": 64,
    "n_layers": 3,
    "n_heads": 4,
    "max_seq_len": 128,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}
FILES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", GPT),
    ("gpt_bigcode", GPT),
    ("gpt_bigcode", {**GPT, "multi_query": False}),
    ("gptj", {**GPT, "rotary_dim": 8, "tie_word_embeddings": False}),
    ("opt", OPT),
    ("bloom", {"vocab_size": 300, "hidden_size": 64, "n_layer": 3, "n_head": 4}),
    ("mpt", {"vocab_size": 300, "d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 128}),
    ("dbrx", DBRX),
]


def shape(kind: str, config: dict[str, Any]) -> Shape:
    return Shape.model_validate(read_shape({"model_type": kind, **config}))


@pytest.mark.parametrize(
    ("kind", "config"), FILES, ids=[f"{k}-{i}" for i, (k, _) in enumerate(FILES)]
)
def test_an_older_decoder_has_as_many_parameters_as_in_transformers(
    kind: str, config: dict[str, Any]
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    built = sum(tensor.numel() for tensor in model.parameters())
    assert parameters(shape(kind, config)).total == built


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in FILES}))
def test_an_older_decoder_is_planned_only(kind: str) -> None:
    assert shape(kind, dict(FILES)[kind]).planned_only


def test_starcoder_keeps_one_key_and_value_head() -> None:
    assert shape("gpt_bigcode", GPT).kv_heads == 1
    assert shape("gpt_bigcode", {**GPT, "multi_query": False}).kv_heads == 4


def test_numbers_are_found_where_a_file_nests_them() -> None:
    read = shape("dbrx", DBRX)
    assert read.kv_heads == 2
    assert read.moe is not None
    assert (read.moe.experts, read.moe.experts_per_token, read.moe.intermediate_size) == (4, 2, 48)


def test_an_embedding_narrower_than_the_rest_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"word_embed_proj_dim \(32\) is not hidden_size \(64\)"):
        shape("opt", {**OPT, "word_embed_proj_dim": 32})
