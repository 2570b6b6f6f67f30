"""Layers that keep only what they can still see say what those say that keep everything."""

from typing import Any

import pytest

from servekit.config.shape import Shape
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
from tests.conftest import tiny_shape
from tests.engine.tiny import greedy, prompts, tiny_decoder, tiny_engine

PROMPTS = [*prompts(8, seed=3), prompts(1, seed=5)[0] * 3]
WORDS = [greedy(30 + index) for index in range(8)] + [greedy(60)]
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "roomy": {},
    "chunked": {"scheduler": {"max_num_batched_tokens": 9}},
    "tight": {"kv": {"capacity_tokens": 256, "block_size": 4}},
    "without a prefix cache": {"kv": {"block_size": 4, "prefix_caching": False}},
}


def windowed() -> Shape:
    """One layer that sees everything, five that see 8 tokens: six groups of one layer."""
    return tiny_shape(layers=6, sliding_window=8, full_attention_layers=(5,))


def engine(hybrid: bool, **groups: dict[str, Any]) -> LocalEngine:
    groups["kv"] = {"hybrid": hybrid, **groups.get("kv", {})}
    return tiny_engine(tiny_decoder(windowed()), model={"shape": windowed()}, **groups)


def tokens(engine: LocalEngine, words: list[Sampling]) -> list[list[int]]:
    results = engine.generate(PROMPTS, words)
    assert {result.finish for result in results} == {"length"}, [r.error for r in results]
    engine.scheduler.check()
    return [result.tokens for result in results]


@pytest.mark.parametrize("setting", SETTINGS)
def test_tokens_are_those_of_a_cache_that_keeps_everything(setting: str):
    hybrid = engine(True, **SETTINGS[setting])
    assert hybrid.runner.cache.num_groups == 6
    expected = tokens(engine(False), WORDS)
    assert tokens(hybrid, WORDS) == expected
    assert tokens(hybrid, WORDS) == expected, "again, with what is cached"


def test_a_long_request_holds_few_blocks_of_layers_with_a_window():
    hybrid = engine(True, kv={"block_size": 4})
    hybrid.submit([7] * 40, greedy(150))
    for _ in range(140):
        hybrid.core.step()
    (request,) = hybrid.scheduler.requests.values()
    *windowed_layers, full = sorted(sum(map(bool, table)) for table in request.tables)
    assert full >= 44
    assert max(windowed_layers) <= 4


def test_the_null_block_stays_zero():
    hybrid = engine(True, kv={"block_size": 4})
    tokens(hybrid, WORDS)
    assert not hybrid.runner.cache.data[:, :, 0].any()
