"""Layers that keep other bytes of a token than the rest, and keys of an indexer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from servekit.config.schema import Config
from servekit.config.shape import Shape
from servekit.spec.kv import KvRead, empty_layout, kv_layout, kv_reads
from servekit.spec.layer_blocks import index_bytes_per_token, kept_bytes_per_token, pages
from servekit.spec.model import GIB
from tests.conftest import tiny_config, tiny_shape
from tests.spec.log_shapes import on_card
from tests.spec.served import served, shape_of

TWO_KINDS = {"sliding_window": 32, "full_attention_layers": (2,)}
INDEXER = {"heads": 2, "head_dim": 8, "top_k": 4, "layers": (0, 2)}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 24, "rope_head_dim": 4, "nope_head_dim": 8}


def hybrid(shape: Shape, tensor: int = 1) -> Config:
    return on_card(shape, "h100", 1.0, parallelism={"tensor": tensor})


def stretches(config: Config) -> dict[str, int]:
    return {group.kind: group.stretch for group in empty_layout(config).groups}


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        pytest.param(1, {"full": 2, "sliding": 1}, id="4 heads of 512 beside 16 of 256"),
        pytest.param(4, {"full": 2, "sliding": 1}, id="1 beside 4"),
        pytest.param(8, {"full": 1, "sliding": 1}, id="1 beside 2, the same"),
        pytest.param(16, {"full": 1, "sliding": 2}, id="1 beside 1"),
    ],
)
def test_the_kind_that_keeps_less_puts_more_tokens_into_a_block(
    tensor: int, expected: dict[str, int]
) -> None:
    assert stretches(hybrid(shape_of("gemma4_31b"), tensor)) == expected


def test_a_block_is_padded_where_no_whole_number_of_tokens_fills_it() -> None:
    config = hybrid(tiny_shape(**TWO_KINDS, full_head_dim=12, max_position_embeddings=8192))
    sliding, full = pages(config)
    assert stretches(config) == {"full": 1, "sliding": 1}
    assert sliding.bytes == full.bytes == 16 * 2 * 2 * 12 * 2


def test_without_groups_a_block_is_made_of_unequal_parts() -> None:
    config = tiny_config(model={"shape": tiny_shape(**TWO_KINDS, full_head_dim=12)})
    assert empty_layout(config).bytes_per_block == 16 * 2 * 2 * (2 * 8 + 12) * 4
    assert empty_layout(config).uniform


@given(
    st.sampled_from(["gemma4_31b", "gemma3_27b", "gpt_oss_20b"]), st.sampled_from([1, 2, 4, 8, 16])
)
def test_blocks_of_all_groups_are_of_one_size(model: str, tensor: int) -> None:
    sliding, full = pages(hybrid(shape_of(model), tensor))
    assert sliding.bytes == full.bytes


@pytest.mark.parametrize(("in_groups", "tokens"), [(False, 55_000), (True, 525_000)])
def test_gemma_4_holds_what_users_of_vllm_measured(in_groups: bool, tokens: int) -> None:
    """vllm#43308: Gemma 4 31B on an A100, about 50 GB, before and after layers were grouped."""
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    config = on_card(
        shape_of("gemma4_31b"),
        "a100_80g",
        50e9 / GIB,
        kv={"hybrid": in_groups},
        scheduler=limits,
        model={"max_model_len": 262144, "shape": shape_of("gemma4_31b"), "dtype": "bfloat16"},
    )
    layout, _ = kv_layout(config, 0)
    assert layout.capacity_tokens == pytest.approx(tokens, rel=0.05)


def test_keys_that_are_values_are_kept_as_both() -> None:
    same = tiny_shape(**TWO_KINDS, full_keys_are_values=True)
    assert kept_bytes_per_token(same, "bfloat16") == 3 * 2 * 2 * 8 * 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"full_kv_heads": 3}, r"full_kv_heads \(3\) must divide heads \(4\)"),
        ({"full_head_dim": 7}, r"full_head_dim \(7\) must be even"),
        ({"mla": {**MLA, "indexer": None}, "full_head_dim": 16}, "with mla leave them null"),
        ({"mla": {**MLA, "indexer": {**INDEXER, "layers": (3,)}}}, r"indexer.layers \[3\] are not"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        tiny_shape(**TWO_KINDS, **changes)


def test_ranks_must_divide_the_heads_of_both_kinds() -> None:
    shape = tiny_shape(**TWO_KINDS, heads=12, kv_heads=4, full_kv_heads=3)
    with pytest.raises(ValidationError, match="tensor=4 does not divide 3 KV heads"):
        tiny_config(model={"shape": shape}, parallelism={"tensor": 4})


def test_full_layers_read_their_own_bytes() -> None:
    config = tiny_config(model={"shape": tiny_shape(**TWO_KINDS, full_kv_heads=1)})
    assert kv_reads(config) == (
        KvRead(bytes_per_token=2.0 * 2 * 2 * 8 * 4, window=32, layers=2),
        KvRead(bytes_per_token=2.0 * 1 * 8 * 4, window=None, layers=1),
    )


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 256), ("fp8", 132), ("int8", 132)])
def test_the_key_of_an_indexer_has_its_scale_with_it(dtype: str, size: int) -> None:
    assert index_bytes_per_token(shape_of("deepseek_v3_2"), dtype) == size  # type: ignore[arg-type]


def indexed() -> Config:
    shape = tiny_shape(mla={**MLA, "indexer": INDEXER}, kv_heads=4, head_dim=12, value_head_dim=8)
    return tiny_config(model={"shape": shape})


def test_layers_with_an_indexer_keep_its_keys_too() -> None:
    assert empty_layout(indexed()).bytes_per_token == (3 * 20 + 2 * 8) * 4


def test_attention_reads_what_an_indexer_chose_from_the_keys_of_all() -> None:
    assert kv_reads(indexed()) == (
        KvRead(bytes_per_token=3.0 * 20 * 4, window=4, layers=3),
        KvRead(bytes_per_token=2.0 * 8 * 4, window=None, layers=2, part="index"),
    )


def test_layers_that_guess_have_an_indexer_as_well() -> None:
    speculative = {"method": "mtp", "tokens": 1, "acceptance": 0.8}
    plain = served("deepseek_v3_2", "h200", 8)
    guessing = served("deepseek_v3_2", "h200", 8, speculative=speculative)
    per_token = empty_layout(plain).bytes_per_token
    assert empty_layout(guessing).bytes_per_token == per_token // 61 * 62
