"""Layers that keep alike share block tables."""

import pytest

from servekit.config.shape import Shape
from servekit.spec.groups import LayerGroup, group_size, layer_groups
from tests.spec import log_shapes as models


@pytest.mark.parametrize(
    ("shape", "full", "sliding"),
    [
        pytest.param(models.GEMMA2_2B, [13], [13], id="gemma-2-2b"),
        pytest.param(models.GEMMA2_9B, [21], [21], id="gemma-2-9b"),
        pytest.param(models.GEMMA2_27B, [23], [23], id="gemma-2-27b"),
        pytest.param(models.GEMMA3_4B, [5], [5, 5, 5, 5, 5, 4], id="gemma-3-4b"),
        pytest.param(models.GEMMA3_12B, [8], [8, 8, 8, 8, 8], id="gemma-3-12b"),
        pytest.param(models.GEMMA3_27B, [10], [9, 9, 9, 9, 8, 8], id="gemma-3-27b"),
        pytest.param(models.GPT_OSS_20B, [12], [12], id="gpt-oss-20b"),
        pytest.param(models.GPT_OSS_120B, [18], [18], id="gpt-oss-120b"),
    ],
)
def test_layers_are_grouped_by_what_they_keep(
    shape: Shape, full: list[int], sliding: list[int]
) -> None:
    groups = [group for group, _ in layer_groups(shape, hybrid=True)]
    assert [group.layers for group in groups if group.kind == "full"] == full
    assert [group.layers for group in groups if group.kind == "sliding"] == sliding


@pytest.mark.parametrize(
    ("counts", "size"), [([10, 52], 10), ([12, 12], 12), ([10, 14], 14), ([10, 15], 10), ([7], 7)]
)
def test_groups_are_padded_where_buckets_are_nearly_of_one_size(
    counts: list[int], size: int
) -> None:
    assert group_size(counts) == size


def test_chunked_layers_are_charged_their_chunk_and_the_tokens_in_flight() -> None:
    group = LayerGroup("chunked", layers=36, window=8192)
    assert group.blocks_for(10**6, block_size=16, in_flight=2048, drafts=0) == 640
    assert group.blocks_for(100, block_size=16, in_flight=2048, drafts=0) == 7
