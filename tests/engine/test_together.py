"""Every two features together: they serve the same tokens as without, or are refused in words."""

from itertools import combinations
from typing import Any

import pytest

from servekit.planner.capability import cannot_run
from servekit.planner.plan import plan
from servekit.spec.memory import ledger
from tests.conftest import tiny_config, tiny_shape
from tests.engine.tiny import greedy, prompts, tiny_decoder, tiny_engine

Groups = dict[str, dict[str, Any]]

SHAPE = tiny_shape(sliding_window=8, full_attention_layers=(2,))
"""Layers of both kinds, so that `hybrid` has something to do."""
PROMPTS = prompts(4, seed=7)
GREEDY = [greedy(6 + index) for index in range(4)]

RUN: dict[str, Groups] = {
    "chunked": {"scheduler": {"max_num_batched_tokens": 9}},
    "one at a time": {"scheduler": {"max_num_seqs": 1}},
    "static": {"scheduler": {"policy": "static"}},
    "worst case": {"scheduler": {"reserve": "worst_case"}},
    "predicted": {"scheduler": {"reserve": "predicted"}},
    "priority": {"scheduler": {"order": "priority"}},
    "fair": {"scheduler": {"order": "fair"}},
    "two pools": {"scheduler": {"order": "two_pool"}},
    "longest prefix": {"scheduler": {"order": "longest_prefix"}},
    "skip ahead": {"scheduler": {"max_skip_ahead": 4}},
    "cheapest victim": {"scheduler": {"victim": "cheapest"}},
    "no prefix cache": {"kv": {"prefix_caching": False}},
    "hybrid": {"kv": {"hybrid": True}},
    "small blocks": {"kv": {"block_size": 4}},
    "tight": {"kv": {"capacity_tokens": 256}},
    "offload": {"kv": {"offload_gib": 1e-3}},
    "pinned": {"kv": {"pinned_prompts": ("a prompt",)}},
    "enforced": {"slo": {"ttft_ms": 1e9, "admission": "enforce"}},
}
"""What this release runs."""

PLANNED: dict[str, tuple[Groups, str]] = {
    "two devices": ({"parallelism": {"data": 2}}, "2 devices"),
    "four bits": ({"quantization": {"weights": "int8"}}, "quantization.weights"),
    "narrow cache": ({"kv": {"dtype": "int4"}}, "kv.dtype"),
    "guessing": ({"speculative": {"method": "ngram", "tokens": 2}}, "speculative.method"),
}
"""What it plans and does not run, and the words that say so."""

CONTRADICT = {
    frozenset({"no prefix cache", "pinned"}): "kv.pinned_prompts are of the prefix cache",
}
"""Pairs that are refused, and with what sentence."""

NARROW: dict[str, Groups] = {
    "bfloat16 cache": {"kv": {"dtype": "bfloat16"}},
    "float16 cache": {"kv": {"dtype": "float16"}},
}
"""They round, so their tokens may be others."""

ALL = {**RUN, **{name: groups for name, (groups, _) in PLANNED.items()}}


def together(*names: str) -> Groups:
    groups: Groups = {"model": {"shape": SHAPE}}
    for name in names:
        for group, words in (ALL | NARROW)[name].items():
            groups[group] = {**groups.get(group, {}), **words}
    return groups


def tokens(groups: Groups) -> list[list[int]]:
    engine = tiny_engine(tiny_decoder(SHAPE), **groups)
    results = engine.generate(PROMPTS, GREEDY)
    assert {result.finish for result in results} == {"length"}, [r.error for r in results]
    engine.scheduler.check()
    return [result.tokens for result in results]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return tokens(together())


@pytest.mark.parametrize("one", RUN)
def test_features_serve_the_same_tokens_together_or_are_refused_in_words(
    one: str, expected: list[list[int]]
) -> None:
    for other in list(RUN)[list(RUN).index(one) :]:
        groups = together(one, other)
        if reason := CONTRADICT.get(frozenset({one, other})):
            with pytest.raises(ValueError, match=reason):
                tiny_config(**groups)
            continue
        assert cannot_run(tiny_config(**groups)) == [], (one, other)
        assert tokens(groups) == expected, (one, other)


@pytest.mark.parametrize("one", {**RUN, **NARROW})
def test_what_is_planned_is_what_engine_and_scheduler_have(one: str) -> None:
    config = tiny_config(**together(one))
    decoder = tiny_decoder(SHAPE)
    engine = tiny_engine(decoder, **together(one))
    layout = ledger(config, weights_bytes=decoder.weight_bytes).layout
    assert layout.capacity_tokens == plan(config, advise=False).kv.capacity_tokens
    assert engine.info.capacity_tokens == layout.capacity_tokens
    assert engine.info.num_blocks == layout.num_blocks
    engine.generate([[5] * 10], [greedy(2)])
    assert engine.stats is not None
    assert engine.stats.blocks_total == layout.num_blocks


@pytest.mark.parametrize("one", {**RUN, **NARROW})
def test_no_feature_turns_the_prefix_cache_off_but_the_one_that_says_so(one: str) -> None:
    engine = tiny_engine(tiny_decoder(SHAPE), **together(one))
    (first,) = engine.generate([[5] * 40], [greedy(2)])
    (again,) = engine.generate([[5] * 40], [greedy(2)])
    assert first.cached_tokens == 0
    assert (again.cached_tokens > 0) == (one != "no prefix cache")


@pytest.mark.parametrize(
    ("one", "other"), [pair for pair in combinations(ALL, 2) if {*pair} & PLANNED.keys()]
)
def test_what_is_only_planned_is_refused_in_words_beside_whatever_else(
    one: str, other: str
) -> None:
    reasons = cannot_run(tiny_config(**together(one, other)))
    for name in {one, other} & PLANNED.keys():
        assert sum(PLANNED[name][1] in reason for reason in reasons) == 1
    assert len(reasons) == len({one, other} & PLANNED.keys())
