"""A cache of eight bits: half the memory, nearly the same numbers, the same whatever happens."""

from typing import Any

import pytest

from servekit.engine.messages import Sampling
from tests.engine.tiny import greedy, prompts, tiny_engine

PROMPTS = prompts(6, seed=5)
SAMPLINGS = [greedy(12), *(Sampling(max_tokens=12, seed=n, temperature=0.7) for n in range(5))]
NARROW: dict[str, Any] = {"dtype": "int8", "block_size": 4}
WAYS: dict[str, dict[str, Any]] = {
    "in company": {"kv": NARROW},
    "in chunks": {"kv": NARROW, "scheduler": {"max_num_batched_tokens": 9}},
    "preempted": {"kv": {**NARROW, "capacity_tokens": 112, "prefix_caching": False}},
    "swapped": {
        "kv": {**NARROW, "capacity_tokens": 112, "prefix_caching": False, "offload_gib": 1e-3}
    },
}


def tokens(**groups: Any) -> list[list[int]]:
    engine = tiny_engine(**groups)
    found = [result.tokens for result in engine.generate(PROMPTS, SAMPLINGS)]
    engine.scheduler.check()
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_tokens_are_those_of_each_request_by_itself(way: dict[str, Any]) -> None:
    assert tokens(**way) == tokens(kv=NARROW, scheduler={"max_num_seqs": 1})


def test_a_prefix_that_is_found_is_the_prefix_that_was_stored() -> None:
    engine = tiny_engine(kv=NARROW)
    first = [result.tokens for result in engine.generate(PROMPTS, SAMPLINGS)]
    again = engine.generate(PROMPTS, SAMPLINGS)
    assert [result.tokens for result in again] == first
    assert max(result.cached_tokens for result in again) >= 16


def test_most_first_tokens_are_those_of_a_wide_cache() -> None:
    wide, narrow = (tokens(kv=kv) for kv in ({"block_size": 4}, NARROW))
    same = sum(a[0] == b[0] for a, b in zip(wide, narrow, strict=True))
    assert same >= len(PROMPTS) - 1


def test_the_cache_takes_the_bytes_that_are_planned() -> None:
    engine = tiny_engine(kv=NARROW)
    shape = engine.runner.decoder.shape
    head = shape.head_dim + 4  # int8, and a float32 scale
    token = shape.layers * 2 * shape.kv_heads * head
    assert engine.info.kv_bytes == engine.info.num_blocks * 4 * token
