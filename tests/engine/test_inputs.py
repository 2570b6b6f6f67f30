"""Batches as tensors, and the worst one."""

import pytest

from servekit.engine.inputs import build_inputs
from servekit.engine.warmup import worst_batch
from servekit.scheduler.batch import PLACEHOLDER, Batch, Row
from servekit.spec.groups import LayerGroup
from servekit.spec.kv import KvLayout


def test_rows_are_laid_end_to_end():
    rows = [
        Row(7, 0, [10, 11, 12], ([5],), samples=False),
        Row(8, 6, [20], ([3, 9],), samples=True),
        Row(9, 3, [30, 31, 32], ([2, 4],), samples=True),
    ]
    inputs = build_inputs(Batch.of(1, rows), 4, "cpu", lambda *_: 0)
    assert inputs.token_ids.tolist() == [10, 11, 12, 20, 30, 31, 32]
    assert inputs.positions.tolist() == [0, 1, 2, 6, 3, 4, 5]
    assert inputs.slots[0].tolist() == [20, 21, 22, 38, 11, 16, 17]
    assert inputs.query_lens == [3, 1, 3]
    assert inputs.seq_lens == [3, 7, 6]
    assert inputs.block_tables[0].tolist() == [[5, 0], [3, 9], [2, 4]]
    assert inputs.sample_at.tolist() == [3, 6]


def test_a_placeholder_becomes_what_its_request_sampled_last():
    rows = [
        Row(7, 4, [PLACEHOLDER], ([1, 2],), samples=True),
        Row(8, 0, [9], ([3],), samples=True),
        Row(9, 5, [PLACEHOLDER], ([4, 5],), samples=True),
    ]
    sampled = {(7, 4): 70, (9, 5): 90}
    inputs = build_inputs(Batch.of(1, rows), 4, "cpu", lambda *at: sampled[at])
    assert inputs.token_ids.tolist() == [70, 9, 90]


def test_a_block_table_may_be_longer_than_its_row():
    row = Row(7, 0, [1, 2], ([5, 6, 7],), samples=True)
    inputs = build_inputs(Batch.of(1, [row]), 4, "cpu", lambda *_: 0)
    assert inputs.block_tables[0].tolist() == [[5, 6, 7]]
    assert inputs.slots[0].tolist() == [20, 21]


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "blocks", "rows", "computed"),
    [
        (8, 64, 256, 65, 8, 64),  # room for everything
        (1, 64, 256, 65, 1, 64),
        (8, 64, 10, 65, 8, 64),  # contexts shorter than the budget: several long rows
        (2, 64, 10, 65, 2, 20),
        (8, 64, 256, 6, 5, 64),  # a small cache: a block a row, five of them
        (8, 8, 256, 65, 8, 8),  # no room for a prompt
        (3, 7, 5, 3, 2, 7),
    ],
)
def test_the_worst_step_is_as_large_as_limits_and_cache_allow(
    seqs: int, tokens: int, length: int, blocks: int, rows: int, computed: int
):
    block_size = 16 if length > 16 else 4
    layout = KvLayout(
        block_size=block_size,
        bytes_per_block=1,
        num_blocks=blocks - 1,
        groups=(LayerGroup("full", 3, None),),
        max_model_len=length,
    )
    batch = worst_batch(layout, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    inputs = build_inputs(batch, block_size, "cpu", lambda *_: 0)
    slots = inputs.slots[0].tolist()
    assert len(set(slots)) == len(slots), "no slot is written twice"
    assert min(slots) >= block_size, "the null block is left alone"
    assert int(inputs.block_tables[0].max()) < blocks
    longest = min(length, (blocks - len(batch.rows)) * block_size)
    assert max(inputs.seq_lens) == inputs.seq_lens[0] == longest
    assert (len(batch.rows), batch.num_tokens) == (rows, computed)
