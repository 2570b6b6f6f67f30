"""Blocks of a request and bytes of a block, and what always holds of them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.config.shape import Shape
from servekit.spec.groups import LayerGroup
from servekit.spec.kv import (
    KvLayout,
    KvRead,
    empty_layout,
    kv_layout,
    kv_reads,
)
from servekit.spec.layer_blocks import head_bytes
from servekit.spec.memory import ledger
from servekit.spec.model import GIB
from tests.conftest import tiny_config, tiny_shape
from tests.spec import log_shapes as models
from tests.spec import shapes
from tests.spec.log_shapes import on_card

FULL = (LayerGroup("full", layers=3, window=None),)


def test_layers_that_share_another_s_cache_keep_nothing_and_read_all_the_same() -> None:
    config = tiny_config(model={"shape": tiny_shape(shared_kv_layers=(2,))})
    layer = 2 * 2 * 8 * 4
    assert empty_layout(config).bytes_per_block == 16 * 2 * layer
    assert kv_reads(config) == (KvRead(bytes_per_token=3.0 * layer, window=None, layers=3),)


def test_keys_and_values_may_differ_in_width() -> None:
    config = tiny_config(model={"shape": tiny_shape(value_head_dim=4)})
    assert empty_layout(config).bytes_per_token == 3 * 2 * (8 + 4) * 4


def test_a_latent_vector_is_kept_once_for_keys_and_values() -> None:
    config = on_card(models.KIMI_VL, "h100", 1.0)
    assert empty_layout(config).bytes_per_token == 31104


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bfloat16", 256), ("float32", 512), ("fp8", 128), ("int8", 132), ("int4", 68), ("nvfp4", 72)],
)
def test_a_head_has_its_scales_with_it(dtype: Any, size: int) -> None:
    assert head_bytes(dtype, 128) == size


def test_slots_of_guessed_tokens_are_held_too() -> None:
    layout = KvLayout(16, 1600, 100, FULL, max_model_len=256, drafts=3)
    assert layout.blocks_for(256) == 17
    assert layout.blocks_for(13) == 1
    assert layout.longest_request == 100 * 16 - 3


def test_a_draft_model_keeps_keys_and_values_of_its_own() -> None:
    speculative = {
        "method": "draft",
        "tokens": 2,
        "acceptance": 0.5,
        "draft_parameters": 1000,
        "draft_kv_bytes_per_token": 100,
    }
    plain, drafted = tiny_config(), tiny_config(speculative=speculative)
    more = empty_layout(drafted).bytes_per_token - empty_layout(plain).bytes_per_token
    assert more == 100


def test_the_model_s_own_extra_layers_keep_keys_and_values_when_they_guess() -> None:
    shape = tiny_shape(mtp_layers=1)
    plain = tiny_config(model={"shape": shape})
    guessing = tiny_config(
        model={"shape": shape}, speculative={"method": "mtp", "tokens": 1, "acceptance": 0.5}
    )
    per_token = empty_layout(plain).bytes_per_token
    assert empty_layout(guessing).bytes_per_token == per_token // 3 * 4


def test_a_stage_keeps_its_own_layers_and_all_stages_have_one_block_table() -> None:
    config = on_card(models.GEMMA3_27B, "h100", 10.0, parallelism={"pipeline": 2})
    whole = empty_layout(on_card(models.GEMMA3_27B, "h100", 10.0))
    stages = [empty_layout(config, stage) for stage in (0, 1)]
    assert all(stage.groups == whole.groups for stage in stages)
    assert all(stage.bytes_per_block == whole.bytes_per_block // 2 for stage in stages)


def test_reads_are_bounded_by_the_window_of_each_kind_of_layer() -> None:
    rows = kv_reads(on_card(models.GPT_OSS_20B, "h100", 1.0))
    assert {row.window: row.bytes_per_token for row in rows} == {None: 24576.0, 128: 24576.0}


def test_a_named_number_of_tokens_is_held_by_a_hybrid_in_its_own_count() -> None:
    config = on_card(
        models.GEMMA3_27B, "h100", 1.0, kv={"memory_gib": None, "capacity_tokens": 100_001}
    )
    layout, rule = kv_layout(config, 0)
    assert rule == "kv.capacity_tokens"
    assert layout.capacity_tokens >= 100_001
    assert replace(layout, num_blocks=layout.num_blocks - 1).capacity_tokens < 100_001


def test_the_longest_request_is_the_longest_that_has_blocks_enough() -> None:
    layout = ledger(on_card(models.GEMMA3_27B, "h100", 16.04)).layout
    longest = layout.longest_request
    assert layout.blocks_for(longest) <= layout.num_blocks < layout.blocks_for(longest + 1)


SHAPES = st.sampled_from(
    [shapes.LLAMA_8B, models.QWEN3_30B_A3B, models.KIMI_VL, models.GEMMA3_27B, models.GPT_OSS_20B]
)


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, mib=st.integers(1, 10**5), hybrid=st.booleans())
def test_fp8_holds_exactly_twice_the_blocks(shape: Shape, mib: int, hybrid: bool) -> None:
    block = empty_layout(on_card(shape, "h100", 1.0, kv={"hybrid": hybrid})).bytes_per_block
    gib = mib * block / GIB
    kv = {"hybrid": hybrid}
    wide = ledger(on_card(shape, "h100", gib, kv=kv)).layout
    narrow = ledger(on_card(shape, "h100", gib, kv={**kv, "dtype": "fp8"})).layout
    assert wide.bytes_per_block == 2 * narrow.bytes_per_block
    assert narrow.num_blocks in (2 * wide.num_blocks, 2 * wide.num_blocks + 1)


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, tensor=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_heads_as_far_as_there_are_any(shape: Shape, tensor: int) -> None:
    one = empty_layout(on_card(shape, "h100", 1.0)).bytes_per_token
    many = empty_layout(on_card(shape, "h100", 1.0, parallelism={"tensor": tensor}))
    shared = 1 if shape.mla else min(tensor, shape.kv_heads)
    assert many.bytes_per_token * shared == one


@settings(max_examples=200, deadline=None)
@given(
    shape=SHAPES,
    tokens=st.integers(1, 131072),
    more=st.integers(0, 5000),
    step=st.integers(1024, 16384),
    wider=st.integers(0, 16384),
)
def test_longer_requests_and_larger_steps_never_take_fewer_blocks(
    shape: Shape, tokens: int, more: int, step: int, wider: int
) -> None:
    def blocks(length: int, in_flight: int) -> int:
        limits = {"max_num_batched_tokens": in_flight}
        return empty_layout(on_card(shape, "h100", 1.0, scheduler=limits)).blocks_for(length)

    assert blocks(tokens, step) <= blocks(tokens + more, step)
    assert blocks(tokens, step) <= blocks(tokens, step + wider)


@settings(max_examples=100, deadline=None)
@given(length=st.integers(1, 131072), gib=st.floats(0.01, 100))
def test_uniform_layers_hold_their_capacity_in_requests_of_whole_blocks(
    length: int, gib: float
) -> None:
    layout = ledger(on_card(shapes.LLAMA_8B, "h100", gib)).layout
    rounded = layout.blocks_for(length) * layout.block_size
    assert layout.max_concurrency(length) * rounded == pytest.approx(layout.capacity_tokens)
