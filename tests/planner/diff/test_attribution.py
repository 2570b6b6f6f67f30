"""Effects are shared out among causes, and the shares sum to the whole change exactly."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.config.compose import layer, settle
from servekit.config.library import Library
from servekit.config.origins import COMMAND_LINE_RANK, Layered, Origin, select
from servekit.planner.diff.attribution import (
    TOGETHER,
    Attribution,
    Cause,
    Figures,
    attribute,
    causes,
    chosen,
    mixed,
)


def tree(values: Mapping[str, Any], files: Mapping[str, str] | None = None) -> Layered:
    """A tree of dotted keys; from words, or from the file that is given for a group."""
    layered = Layered()
    for key, value in values.items():
        file = (files or {}).get(key.partition(".")[0])
        origin = (
            Origin("file", file, None)
            if file
            else Origin("word", f"{key}={value}", None, COMMAND_LINE_RANK)
        )
        layered.merge(tuple(key.split(".")), value, origin)
    return layered


def named(base: Layered, head: Layered) -> dict[str, set[str]]:
    found = causes(base, head, lambda path: path)
    return {cause.name: set(cause.keys) for cause in found}


def shared(before: Mapping[str, int], after: Mapping[str, int], score: Any) -> Attribution:
    """Of leaves `g.x`, where `score` makes a metric of their values, or None."""
    base, head = tree(before), tree(after)

    def evaluate(mixture: Layered) -> Figures | None:
        value = score({key: select(mixture.tree, tuple(key.split("."))) for key in after})
        if value == "invalid":
            return None
        return Figures("ok" if value is None or value < 100 else "impossible", {"m": value})

    return attribute(base, head, causes(base, head, lambda path: path), evaluate)


def test_two_causes_that_only_work_together_share_alike() -> None:
    found = shared({"a.x": 1, "b.y": 1}, {"a.x": 3, "b.y": 5}, lambda v: v["a.x"] * v["b.y"])
    assert found.by["m"] == {"a.x": 6, "b.y": 8}


def test_a_leaf_that_moves_nothing_is_idle() -> None:
    found = shared({"a.x": 1, "b.y": 1}, {"a.x": 3, "b.y": 5}, lambda v: v["a.x"])
    assert found.idle == ("b.y",)
    assert found.by["m"] == {"a.x": 2}


def test_leaves_that_only_do_something_together_are_not_idle() -> None:
    found = shared(
        {"a.x": 0, "b.y": 0, "c.z": 0},
        {"a.x": 1, "b.y": 1, "c.z": 1},
        lambda v: int(v["a.x"] + v["b.y"] + v["c.z"] >= 2),
    )
    assert found.idle == ()
    assert sum(found.by["m"].values()) == 1


def test_a_cause_that_is_not_valid_alone_is_joined_with_the_one_it_needs() -> None:
    found = shared(
        {"a.method": 0, "a.other": 1, "a.tokens": 0},
        {"a.method": 1, "a.other": 2, "a.tokens": 4},
        lambda v: (
            "invalid"
            if (v["a.method"] == 0) != (v["a.tokens"] == 0)
            else v["a.other"] * 10 + v["a.tokens"]
        ),
    )
    assert found.by["m"] == {"a.method + a.tokens": 4, "a.other": 10}


def test_what_a_mixture_without_a_value_hides_is_named_together() -> None:
    found = shared(
        {"a.x": 0, "b.y": 0},
        {"a.x": 1, "b.y": 1},
        lambda v: None if (v["a.x"], v["b.y"]) == (1, 0) else v["a.x"] * 7 + v["b.y"],
    )
    assert found.by["m"] == {"b.y": 1, TOGETHER: 7}


def test_a_metric_without_a_value_on_a_side_has_no_shares() -> None:
    found = shared({"a.x": 0}, {"a.x": 1}, lambda v: None if v["a.x"] else 5)
    assert found.by["m"] == {}


def test_the_verdict_is_because_of_what_would_undo_it() -> None:
    found = shared({"a.x": 0, "b.y": 0}, {"a.x": 100, "b.y": 3}, lambda v: v["a.x"] + v["b.y"])
    assert found.because == ("a.x",)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=256, max_size=256),
)
def test_shares_sum_to_the_change_exactly(count: int, worth: list[float]) -> None:
    """Whatever mixtures are worth: all of them for few causes, two orders for many."""
    keys = [f"g{number}.k" for number in range(count)]
    found = shared(
        dict.fromkeys(keys, 0),
        dict.fromkeys(keys, 1),
        lambda v: worth[sum(v[key] << bit for bit, key in enumerate(keys))],
    )
    change = Fraction(worth[2**count - 1]) - Fraction(worth[0])
    assert sum(found.by["m"].values()) == change


def test_leaves_of_another_option_are_one_cause_and_a_word_beside_them_is_its_own() -> None:
    base = tree({"kv.dtype": "a", "kv.size": 1, "kv.word": 1}, {"kv": "/c/kv/paged.yaml"})
    head = tree({"kv.dtype": "b", "kv.size": 2}, {"kv": "/c/kv/fp8.yaml"})
    head.merge(("kv", "word"), 2, Origin("word", "kv.word=2", 2, COMMAND_LINE_RANK))
    assert named(base, head) == {"kv": {"kv.dtype", "kv.size"}, "kv.word": {"kv.word"}}


def test_leaves_of_one_file_that_was_edited_are_causes_of_their_own() -> None:
    files = {"kv": "/c/kv/paged.yaml"}
    base = tree({"kv.dtype": "a", "kv.size": 1}, files)
    head = tree({"kv.dtype": "b", "kv.size": 2}, files)
    assert named(base, head) == {"kv.dtype": {"kv.dtype"}, "kv.size": {"kv.size"}}


def test_a_leaf_that_moves_only_mixtures_in_between_has_its_share() -> None:
    def score(v: dict[str, int]) -> int:
        # c undoes b: neither at the start nor at the end does b show
        return v["a.x"] + (2 if v["a.x"] and v["b.y"] and not v["c.z"] else 0)

    before, after = dict.fromkeys(("a.x", "b.y", "c.z"), 0), dict.fromkeys(("a.x", "b.y", "c.z"), 1)
    found = shared(before, after, score)
    assert found.idle == ()
    assert found.by["m"]["b.y"] == Fraction(1, 3)


def test_null_here_and_a_mapping_there_is_one_cause() -> None:
    base, head = tree({"m.state": None}), tree({"m.state.kind": "x", "m.state.size": 1})
    assert named(base, head) == {"m.state": {"m.state", "m.state.kind", "m.state.size"}}
    keys = frozenset(named(base, head)["m.state"])
    assert mixed(base, head, keys).tree == head.tree
    assert mixed(head, base, keys).tree == base.tree


def test_two_ways_to_size_the_cache_are_one_cause() -> None:
    library = Library(None)
    base, _ = layer(library, ["kv.memory_gib=1"])
    head, _ = layer(library, ["kv.capacity_tokens=4096"])
    found = causes(chosen(base), chosen(head), lambda path: path)
    assert [cause.name for cause in found] == ["kv.capacity_tokens"]
    assert settle(mixed(chosen(base), chosen(head), found[0].keys)).config.kv.memory_gib is None


def test_what_a_rule_derives_is_not_a_cause() -> None:
    library = Library(None)
    base, _ = layer(library, ["hardware=h100"])
    head, _ = layer(library, ["hardware=l4"])
    found = causes(chosen(base), chosen(head), lambda path: path)
    assert [cause.name for cause in found] == ["hardware"]
    assert isinstance(found[0], Cause)
    small = settle(mixed(chosen(base), chosen(head), found[0].keys))
    assert small.config.scheduler.max_num_batched_tokens == 2048
