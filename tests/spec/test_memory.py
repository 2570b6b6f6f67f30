"""The ledger adds up, one rule sizes the cache, and less asked for never stops fitting."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.config.schema import Config
from servekit.config.shape import Shape
from servekit.spec.memory import ledger, stage_ledgers
from servekit.spec.model import GIB, rank_weights
from tests.conftest import tiny_config
from tests.spec import log_shapes, shapes
from tests.spec.log_shapes import on_card

TINY_TOKEN_BYTES = 3 * 2 * 2 * 8 * 4
FRACTION: dict[str, Any] = {"capacity_tokens": None, "memory_fraction": 0.5}


def test_the_parts_and_what_is_unused_make_the_total() -> None:
    book = ledger(shapes.deployment(shapes.LLAMA_8B, "h100"))
    parts = sum(part.bytes for part in book.components.values())
    assert parts + book.unused_bytes == book.total_bytes == int(79.19 * GIB)


def test_measured_weights_replace_planned_ones_and_move_the_cache() -> None:
    config = tiny_config(kv=FRACTION)
    planned = ledger(config)
    extra = 1000 * planned.layout.bytes_per_block
    measured = ledger(config, weights_bytes=planned.weights.bytes + extra)
    assert measured.weights.standing == "measured"
    assert planned.layout.num_blocks - measured.layout.num_blocks == 500


def test_a_size_in_tokens_is_rounded_up_to_blocks() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": 1001}))
    assert book.rule == "kv.capacity_tokens"
    assert (book.layout.num_blocks, book.layout.allocated_blocks) == (63, 64)
    assert book.layout.bytes_per_block == 16 * TINY_TOKEN_BYTES
    assert book.layout.capacity_tokens == 63 * 16


def test_a_size_in_gib_is_the_size_of_the_cache_exactly() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": None, "memory_gib": 0.3}))
    block = 16 * TINY_TOKEN_BYTES
    assert book.rule == "kv.memory_gib"
    assert book.kv.bytes == int(0.3 * GIB)
    assert book.layout.num_blocks == int(0.3 * GIB) // block


def test_a_fraction_is_of_what_is_free_after_everything_else() -> None:
    book = ledger(tiny_config(kv=FRACTION))
    free = book.total_bytes - sum(
        part.bytes for name, part in book.components.items() if name != "kv"
    )
    assert book.rule == "kv.memory_fraction"
    assert book.layout.num_blocks == free // 2 // book.layout.bytes_per_block


def test_no_cache_is_left_where_the_weights_alone_are_too_much() -> None:
    book = ledger(shapes.deployment(shapes.LLAMA_70B, "h100"))
    assert book.layout.num_blocks == 0
    assert not book.fits
    assert book.problem is not None
    assert "before any KV cache" in book.problem


def test_a_derived_pool_shorter_than_the_model_length_does_not_fit() -> None:
    config = shapes.deployment(shapes.LLAMA_8B, "l4", model={"max_model_len": 131072})
    book = ledger(config)
    assert not book.fits
    assert book.problem == (
        f"the KV cache holds {book.layout.capacity_tokens} tokens, and one request may have "
        "131072 (model.max_model_len)"
    )


def test_a_named_pool_shorter_than_the_model_length_fits() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": 64}))
    assert book.fits
    assert not book.holds_longest_request


def test_a_named_pool_larger_than_what_is_free_does_not_fit() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": None, "memory_gib": 4.0}))
    assert not book.fits
    assert book.problem is not None
    assert book.problem.startswith("kv.memory_gib asks for 4.00 GiB")


def test_a_pool_without_one_block_does_not_fit() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": None, "memory_gib": 1e-6}))
    assert book.layout.num_blocks == 0
    assert not book.fits
    assert book.problem is not None
    assert "0 blocks of 16 tokens, and the shortest request needs 1" in book.problem


def test_a_hybrid_pool_must_hold_the_shortest_request_of_all_its_groups() -> None:
    config = on_card(log_shapes.GEMMA3_27B, "h200", 12 * 1310720 / GIB)
    assert ledger(config).layout.blocks_for(1) == 13
    assert ledger(config).verdict == "does_not_fit"


def on_total(memory_gib: float) -> str:
    config = shapes.deployment(
        shapes.LLAMA_8B,
        "l4",
        kv={"memory_fraction": None, "memory_gib": 2.0},
        hardware={"memory_gib": memory_gib},
    )
    return ledger(config).verdict


def test_a_named_pool_is_unsure_as_far_as_the_band_reaches_on_both_sides() -> None:
    book = ledger(
        shapes.deployment(shapes.LLAMA_8B, "l4", kv={"memory_fraction": None, "memory_gib": 2.0})
    )
    used, band = book.used_bytes / GIB, book.band_bytes / GIB
    # the workspace is an upper bound: at the good end there is none
    least, most = used - band - book.workspace.bytes / GIB, used + band
    verdicts = [on_total(total) for total in (least - 0.01, least + 0.01, most - 0.01, most + 0.01)]
    assert verdicts == ["does_not_fit", "unsure", "unsure", "fits"]


def unsure() -> Config:
    """The length is what the cache holds as planned."""
    planned = shapes.deployment(shapes.LLAMA_8B, "l4", model={"max_model_len": 8192})
    longest = ledger(planned).layout.longest_request
    return shapes.deployment(shapes.LLAMA_8B, "l4", model={"max_model_len": longest - 1000})


def test_a_derived_pool_is_unsure_where_only_one_end_of_the_band_holds_a_request() -> None:
    book = ledger(unsure())
    assert book.verdict == "unsure"
    assert book.fits
    assert book.problem is not None
    assert "as what else is used is known to 1.0" in book.problem


def test_the_stage_with_the_fewest_blocks_decides() -> None:
    config = shapes.deployment(
        shapes.LLAMA_8B, "h100", parallelism={"pipeline": 4}, scheduler={"max_num_seqs": 1024}
    )
    stages, book = stage_ledgers(config), ledger(config)
    assert book.stage == 3  # that of the sampler
    assert book.layout.num_blocks == min(stage.layout.num_blocks for stage in stages)
    assert book.layout.num_blocks < stages[0].layout.num_blocks


def test_of_stages_alike_the_heaviest_is_told() -> None:
    config = on_card(shapes.LLAMA_8B, "h100", 1.0, parallelism={"pipeline": 4})
    book = ledger(config)
    heaviest = max(rank_weights(config, stage).bytes for stage in range(4))
    assert book.weights.bytes == heaviest


def test_the_cache_of_two_ranks_holds_half_of_each_token() -> None:
    one = ledger(tiny_config())
    two = ledger(tiny_config(parallelism={"tensor": 2}))
    assert 2 * two.layout.bytes_per_block == one.layout.bytes_per_block


def fitting(memory_gib: float, length: int, running: int, tokens: int, fraction: float) -> bool:
    config = shapes.deployment(
        shapes.LLAMA_8B,
        "l4",
        model={"max_model_len": length},
        scheduler={"max_num_seqs": running, "max_num_batched_tokens": max(tokens, running)},
        kv={"memory_fraction": fraction},
        hardware={"memory_gib": memory_gib},
    )
    book = ledger(config)
    assert sum(part.bytes for part in book.components.values()) + book.unused_bytes == (
        book.total_bytes
    )
    return book.fits


@settings(max_examples=200, deadline=None)
@given(
    memory_gib=st.floats(10, 80),
    length=st.integers(1, 131072),
    running=st.integers(1, 512),
    tokens=st.integers(512, 16384),
    fraction=st.floats(0.05, 1),
    less=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1)),
    more_memory=st.floats(0, 40),
)
def test_asking_for_less_or_giving_more_memory_never_stops_fitting(
    memory_gib: float,
    length: int,
    running: int,
    tokens: int,
    fraction: float,
    less: tuple[float, float, float],
    more_memory: float,
) -> None:
    if fitting(memory_gib, length, running, tokens, fraction):
        shorter = max(1, int(length * less[0]))
        fewer = max(1, int(running * less[1]))
        smaller = max(512, int(tokens * less[2]))
        assert fitting(memory_gib + more_memory, length, running, tokens, fraction)
        assert fitting(memory_gib, shorter, running, tokens, fraction)
        assert fitting(memory_gib, length, fewer, tokens, fraction)
        assert fitting(memory_gib, length, running, smaller, fraction)


@settings(max_examples=100, deadline=None)
@given(tokens=st.integers(1, 10**7), block_size=st.integers(1, 64))
def test_a_named_number_of_tokens_is_always_held(tokens: int, block_size: int) -> None:
    config = tiny_config(kv={"capacity_tokens": tokens, "block_size": block_size})
    layout = ledger(config).layout
    assert tokens <= layout.capacity_tokens < tokens + block_size


@settings(max_examples=100, deadline=None)
@given(
    shape=st.sampled_from([shapes.LLAMA_8B, log_shapes.GEMMA3_27B, log_shapes.QWEN3_30B_A3B]),
    pipeline=st.sampled_from([1, 2, 3, 4, 7]),
    tensor=st.sampled_from([1, 2, 4]),
    gib=st.floats(0.1, 60),
)
def test_no_stage_has_fewer_blocks_and_each_sums_to_the_total(
    shape: Shape, pipeline: int, tensor: int, gib: float
) -> None:
    config = on_card(shape, "h100", gib, parallelism={"pipeline": pipeline, "tensor": tensor})
    book, stages = ledger(config), stage_ledgers(config)
    for stage in stages:
        assert book.layout.num_blocks <= stage.layout.num_blocks
        assert stage.kv.bytes == int(gib * GIB)
        parts = sum(part.bytes for part in stage.components.values())
        assert parts + stage.unused_bytes == int(79.19 * GIB)


@settings(max_examples=100, deadline=None)
@given(
    seats=st.integers(1, 1024),
    tokens=st.integers(1024, 16384),
    more=st.tuples(st.integers(0, 1024), st.integers(0, 16384)),
)
def test_larger_limits_never_make_for_a_larger_capacity_of_a_hybrid(
    seats: int, tokens: int, more: tuple[int, int]
) -> None:
    def capacity(seats: int, tokens: int) -> int:
        config = shapes.deployment(
            log_shapes.GEMMA3_27B,
            "h200",
            kv={"hybrid": True},
            scheduler={"max_num_seqs": seats, "max_num_batched_tokens": max(seats, tokens)},
        )
        return ledger(config).layout.capacity_tokens

    assert capacity(seats + more[0], tokens) <= capacity(seats, tokens)
    assert capacity(seats, tokens + more[1]) <= capacity(seats, tokens)
