"""States of fixed size live in blocks of the same pool."""

from typing import Any

import pytest

from servekit.config.schema import Config
from servekit.spec.kv import empty_layout, state_bytes
from servekit.spec.memory import ledger
from servekit.spec.model import GIB
from tests.conftest import tiny_config, tiny_shape
from tests.spec import shapes
from tests.spec.log_shapes import on_card


def gated_delta(layers: tuple[int, ...]) -> dict[str, Any]:
    """The states of a published model of 27 B parameters."""
    return {
        "kind": "gated_delta",
        "layers": layers,
        "key_heads": 16,
        "key_head_dim": 128,
        "value_heads": 48,
        "value_head_dim": 128,
        "conv_kernel": 4,
        "dtype": "float32",
    }


def with_states(**groups: dict[str, Any]) -> Config:
    """Every fourth of 64 layers attends; a published log of it has blocks of 1,568 tokens."""
    layers = tuple(layer for layer in range(64) if layer % 4 != 3)
    shape = shapes.published(64, 5120, (24, 4, 256), 17408, 248320, state=gated_delta(layers))
    return on_card(shape, "h100", 20.0, **groups)


def test_blocks_grow_until_a_state_is_no_larger_than_one() -> None:
    layout = empty_layout(with_states(kv={"dtype": "fp8"}))
    assert layout.block_size == 1568
    page = layout.bytes_per_block // 16
    state = state_bytes(with_states()) // 48
    assert page / state == pytest.approx(1.0013, abs=5e-5)


def test_a_request_has_one_block_for_each_group_of_states() -> None:
    layout = empty_layout(with_states(kv={"dtype": "fp8"}))
    assert [group.kind for group in layout.groups] == ["full", "state", "state", "state"]
    assert (layout.blocks_for(1), layout.blocks_for(1569)) == (4, 5)


def test_a_model_of_states_alone_holds_as_many_requests_whatever_their_length() -> None:
    state = {
        "kind": "mamba1",
        "layers": (0, 1, 2),
        "inner_size": 64,
        "state_size": 16,
        "conv_kernel": 4,
        "dt_rank": 2,
        "dtype": "float32",
    }
    config = tiny_config(
        model={"shape": tiny_shape(state=state)},
        kv={"capacity_tokens": None, "memory_gib": 0.01},
    )
    layout = ledger(config).layout
    one = 3 * (64 * 3 * 4 + 64 * 16 * 4)
    assert state_bytes(config) == layout.bytes_per_block == one
    assert layout.max_concurrency(1) == layout.max_concurrency(256) == int(0.01 * GIB) // one
    assert (layout.bytes_per_token, layout.longest_request) == (0, 256)


def test_states_of_mamba_2_are_cut_by_heads_and_keep_a_group_on_every_rank() -> None:
    state = {
        "kind": "mamba2",
        "layers": (1,),
        "heads": 8,
        "head_dim": 16,
        "groups": 1,
        "state_size": 32,
        "conv_kernel": 4,
        "dtype": "float32",
    }
    config = tiny_config(model={"shape": tiny_shape(state=state)}, parallelism={"tensor": 2})
    channels = 4 * 16 + 2 * 32
    assert state_bytes(config) == channels * 3 * 4 + 4 * 16 * 32 * 4
