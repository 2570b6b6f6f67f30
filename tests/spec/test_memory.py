"""The ledger adds up, one rule sizes the cache, and less asked for never stops fitting."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.spec.memory import KvLayout, ledger
from servekit.spec.model import GIB
from tests.conftest import tiny_config
from tests.spec import shapes

TINY_TOKEN_BYTES = 3 * 2 * 2 * 8 * 4
FRACTION: dict[str, Any] = {"capacity_tokens": None, "memory_fraction": 0.5}


def test_the_parts_and_what_is_unused_make_the_total() -> None:
    book = ledger(shapes.deployment(shapes.LLAMA_8B, "h100"))
    parts = sum(part.bytes for part in book.components.values())
    assert parts + book.unused_bytes == book.total_bytes == int(79.19 * GIB)


def test_every_component_says_how_sure_it_is() -> None:
    book = ledger(tiny_config())
    assert {name: part.standing for name, part in book.components.items()} == {
        "weights": "exact",
        "activations": "modelled",
        "runtime": "guess",
        "kv": "exact",
    }


def test_measured_weights_replace_planned_ones_and_move_the_cache() -> None:
    config = tiny_config(kv=FRACTION)
    planned = ledger(config)
    extra = 1000 * planned.layout.bytes_per_block
    measured = ledger(config, weights_bytes=planned.weights.bytes + extra)
    assert measured.weights.standing == "measured"
    assert planned.layout.num_blocks - measured.layout.num_blocks == 500


def test_a_size_in_tokens_is_rounded_up_to_blocks_and_one_null_block() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": 1001}))
    assert book.rule == "kv.capacity_tokens"
    assert book.layout == KvLayout(16, 16 * TINY_TOKEN_BYTES, 64)
    assert book.layout.capacity_tokens == 63 * 16


def test_a_size_in_gib_is_never_exceeded() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": None, "memory_gib": 0.5}))
    block = 16 * TINY_TOKEN_BYTES
    assert book.rule == "kv.memory_gib"
    assert book.layout.num_blocks == GIB // 2 // block
    assert book.kv.bytes <= GIB // 2


def test_a_fraction_is_of_what_is_free_after_everything_else() -> None:
    book = ledger(tiny_config(kv=FRACTION))
    free = book.total_bytes - book.weights.bytes - book.activations.bytes - book.runtime.bytes
    assert book.rule == "kv.memory_fraction"
    assert book.layout.num_blocks == free // 2 // book.layout.bytes_per_block


def test_no_cache_is_left_where_the_weights_alone_are_too_much() -> None:
    book = ledger(shapes.deployment(shapes.LLAMA_70B, "h100"))
    assert book.layout.num_blocks == 0
    assert not book.fits
    assert book.problem is not None
    assert "before any KV cache" in book.problem


def test_concurrency_counts_usable_blocks_in_whole_blocks_a_request() -> None:
    layout = KvLayout(block_size=16, bytes_per_block=1600, num_blocks=11)
    assert layout.blocks_for(17) == 2
    assert layout.max_concurrency(17) == 5.0
    assert (layout.capacity_tokens, layout.bytes_per_token, layout.bytes) == (160, 100, 17600)


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


def test_a_pool_without_one_usable_block_does_not_fit() -> None:
    book = ledger(tiny_config(kv={"capacity_tokens": None, "memory_gib": 1e-5}))
    assert book.layout.num_blocks == 1
    assert not book.fits
    assert book.problem is not None
    assert "not one block of 16 tokens" in book.problem


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
