"""Which change of a configuration did what to its plan.

A *cause* is what a person changed: a key, an option of a group, or keys that are only valid
together. What rules derive from it follows it, so it is never a cause: every mixture of causes is
derived and validated anew. Effects are Shapley values (Shapley 1953): the mean, over all orders in
which the causes can be applied, of what each adds; they add up to the whole change. For many causes
the mean is over two orders only, one the reverse of the other.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from math import factorial
from pathlib import PurePath
from typing import Any

from servekit.config.kv_size import KV_SIZES, choose_kv_size
from servekit.config.origins import Layered, Origin, leaves, select

EXACT_CAUSES = 6
"""Most causes that all 2**n mixtures are planned for; with more, those of two orders are."""

TOGETHER = "together"
"""The rest, where a mixture on the way is not valid or has no value: causes are applied alone."""

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Cause:
    """Keys that change as one; `name` is the key itself, or a group of which another option is."""

    name: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is compared of one plan; values by name of metric."""

    verdict: str
    values: Mapping[str, float | None]


Evaluate = Callable[[Layered], Figures | None]
"""The outcome of a tree that nothing is derived in yet; None where it is not valid."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """`by` has, for each metric, the share of each cause: exact, they sum to the change of it.

    Without a value on both sides there is none. `idle` causes change nothing in any mixture looked
    at; `because` are those without which the verdict would not be what it is.
    """

    causes: tuple[Cause, ...]
    idle: tuple[str, ...]
    because: tuple[str, ...]
    by: Mapping[str, Mapping[str, Fraction]]


def chosen(layered: Layered) -> Layered:
    """A copy with one size of the KV cache, as the highest layer has it; as given if two clash."""
    copy = deepcopy(layered)
    return layered if choose_kv_size(copy) else copy


def causes(base: Layered, head: Layered, file_name: Callable[[str], str]) -> list[Cause]:
    """What differs between two trees, before anything is derived; by key.

    `file_name` makes paths of two revisions comparable. Leaves of a group that come from one option
    of it here and from another there are one cause.
    """
    before, after = dict(leaves(base.tree)), dict(leaves(head.tree))
    differing = [
        key
        for key in sorted({**before, **after})
        if not _same(before.get(key, _ABSENT), after.get(key, _ABSENT))
    ]
    options = _options(base, file_name), _options(head, file_name)
    named: dict[str, set[str]] = {}
    for key in differing:
        group = key.partition(".")[0]
        here, there = options[0].get(group, set()), options[1].get(group, set())
        own = [side.origins[key] for side in (base, head) if key in side.origins]
        if here and there and here != there and all(_option(origin, group) for origin in own):
            name = group
        else:
            name = _root(key, differing)
        named.setdefault(name, set()).add(key)
    sizes = [f"kv.{size}" for size in KV_SIZES if f"kv.{size}" in named]
    if len(sizes) > 1:
        winner = next((key for key in sizes if select(head.tree, tuple(key.split(".")))), sizes[0])
        named[winner] = {key for size in sizes for key in named.pop(size)}
    return [Cause(name, frozenset(named[name])) for name in sorted(named)]


def _same(one: Any, other: Any) -> bool:
    """YAML's 1 and 1.0 are one number, 1 and true are not one value."""
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


def _root(key: str, differing: Sequence[str]) -> str:
    """A leaf here may be a mapping there: null, and the keys of what replaced it, are one."""
    parts = key.split(".")
    prefixes = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((prefix for prefix in prefixes if prefix in differing), key)


def _option(origin: Origin, group: str) -> bool:
    """Whether a leaf comes from an option of its group, not from a recipe or a word."""
    return origin.kind == "file" and PurePath(origin.source).parent.name == group


def _options(layered: Layered, file_name: Callable[[str], str]) -> dict[str, set[str]]:
    """Files that options of each group came from."""
    found: dict[str, set[str]] = {}
    for key, origin in layered.origins.items():
        group = key.partition(".")[0]
        if _option(origin, group):
            found.setdefault(group, set()).add(file_name(origin.source))
    return found


def attribute(
    base: Layered, head: Layered, found: Sequence[Cause], evaluate: Evaluate
) -> Attribution:
    """Shares the difference of two valid plans out among `found`."""

    @cache
    def at(keys: frozenset[str]) -> Figures | None:
        return evaluate(mixed(base, head, keys))

    parts = _valid_apart(found, at)
    everything = _keys(parts)
    before, after = at(frozenset()), at(everything)
    assert before is not None, "only valid configurations are compared"
    assert after is not None, "only valid configurations are compared"
    idle = [
        cause
        for cause in parts
        if at(cause.keys) == before and at(everything - cause.keys) == after
    ]
    if at(everything - _keys(idle)) != after:
        idle = []  # they do something together
    few = len(parts) <= EXACT_CAUSES  # then every mixture is looked at, and idle shares are zero
    active = parts if few else [cause for cause in parts if cause not in idle]
    by = {name: _shares(name, active, at) for name in before.values}
    idle = [cause for cause in idle if not any(cause.name in shares for shares in by.values())]
    without = {cause.name: at(everything - cause.keys) for cause in parts if cause not in idle}
    return Attribution(
        causes=tuple(parts),
        idle=tuple(cause.name for cause in idle),
        because=tuple(
            name
            for name, outcome in without.items()
            if before.verdict != after.verdict and outcome and outcome.verdict != after.verdict
        ),
        by=by,
    )


def mixed(base: Layered, head: Layered, keys: frozenset[str]) -> Layered:
    """`base` with these leaves as `head` has them."""
    tree = Layered()
    tree.tree, tree.origins = deepcopy(base.tree), dict(base.origins)
    for key in sorted(keys - head.origins.keys()):
        tree.remove(tuple(key.split(".")))
    for key in sorted(keys & head.origins.keys()):
        path = tuple(key.split("."))
        tree.merge(path, deepcopy(select(head.tree, path)), head.origins[key])
    return tree


def _keys(parts: Sequence[Cause]) -> frozenset[str]:
    return frozenset().union(*(cause.keys for cause in parts))


def _valid_apart(
    found: Sequence[Cause], at: Callable[[frozenset[str]], Figures | None]
) -> list[Cause]:
    """A cause that is not valid alone becomes one with another of its group, or with all of it."""
    everything = _keys(found)

    def stands(*part: Cause) -> bool:
        keys = _keys(part)
        return at(keys) is not None and at(everything - keys) is not None

    parts = list(found)
    for cause in found:
        if cause not in parts or stands(cause):
            continue
        group = cause.name.partition(".")[0]
        kin = [other for other in parts if other.name.partition(".")[0] == group]
        kin.remove(cause)
        partner = next(([other] for other in kin if stands(cause, other)), kin)
        joined = sorted([cause, *partner], key=lambda part: part.name)
        parts = [part for part in parts if part not in joined]
        parts.append(Cause(" + ".join(part.name for part in joined), _keys(joined)))
    return sorted(parts, key=lambda cause: cause.name)


def _shares(
    metric: str, active: Sequence[Cause], at: Callable[[frozenset[str]], Figures | None]
) -> dict[str, Fraction]:
    """Of the causes that move this metric; empty where it has no value before or after."""

    def worth(part: Sequence[Cause]) -> Fraction | None:
        outcome = at(_keys(part))
        value = None if outcome is None else outcome.values[metric]
        return None if value is None else Fraction(value)

    before, after = worth(()), worth(active)
    if before is None or after is None:
        return {}
    found = (shapley if len(active) <= EXACT_CAUSES else two_orders)(active, worth)
    if found is None:
        alone = {cause.name: worth([cause]) for cause in active}
        found = {name: value - before for name, value in alone.items() if value is not None}
        found[TOGETHER] = after - before - sum(found.values())
    return {name: share for name, share in found.items() if share}


Worth = Callable[[Sequence[Cause]], Fraction | None]
"""Of a coalition of causes; None where that is not known."""


def shapley(players: Sequence[Cause], worth: Worth) -> dict[str, Fraction] | None:
    """The Shapley value of each player, exact; None where some coalition is worth nothing known."""
    shares = dict.fromkeys((player.name for player in players), Fraction(0))
    for player in players:
        others = [other for other in players if other is not player]
        for size in range(len(players)):
            orders = Fraction(factorial(size) * factorial(len(others) - size))
            for part in combinations(others, size):
                small, large = worth(part), worth((*part, player))
                if small is None or large is None:
                    return None
                shares[player.name] += (large - small) * orders / factorial(len(players))
    return shares


def two_orders(players: Sequence[Cause], worth: Worth) -> dict[str, Fraction] | None:
    """What each player adds to those before it, in the mean of an order and its reverse."""
    shares = dict.fromkeys((player.name for player in players), Fraction(0))
    for order in (list(players), list(reversed(players))):
        for place, player in enumerate(order):
            small, large = worth(order[:place]), worth(order[: place + 1])
            if small is None or large is None:
                return None
            shares[player.name] += (large - small) / 2
    return shares
