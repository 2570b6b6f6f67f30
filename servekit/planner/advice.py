"""The smallest single changes that make a configuration fit, each tried before it is given."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

from pydantic import ValidationError

from servekit.config.schema import Config
from servekit.spec.memory import Ledger, ledger
from servekit.spec.model import GIB

Value = float | int | str

TENSOR_SIZES = (2, 4, 8, 16)
LARGEST_FRACTION = 0.95
"""Of what is free after weights, activations and runtime; the rest is for what is only guessed."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Command-line words, and what the deployment is with them.

    `planned_only` is True where the gate of this release would refuse the deployment all the same.
    """

    overrides: tuple[str, ...]
    effect: dict[str, float | int]
    planned_only: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "overrides": list(self.overrides),
            "effect": self.effect,
            "planned_only": self.planned_only,
        }


def with_change(config: Config, key: str, value: Value) -> Config | None:
    """The configuration with one key replaced; None where that makes it invalid."""
    group, name = key.split(".")
    changed = {**dict(getattr(config, group)), name: value}
    try:
        return Config.model_validate({**dict(config), group: changed})
    except ValidationError:
        return None


def fits(config: Config | None) -> bool:
    return config is not None and ledger(config).fits


def advise(config: Config) -> list[Advice]:
    """For a configuration that does not fit: what can be run first, the gentlest change first."""
    found = []
    for key, value in chain.from_iterable(way(config) for way in WAYS):
        changed = with_change(config, key, value)
        if changed is not None and fits(changed):
            planned_only = changed.parallelism.tensor > 1
            found.append(Advice((f"{key}={value}",), effect(ledger(changed)), planned_only))
    return sorted(found, key=lambda advice: advice.planned_only)


def effect(book: Ledger) -> dict[str, float | int]:
    return {
        "capacity_tokens": book.layout.capacity_tokens,
        "max_concurrency": round(book.layout.max_concurrency(book.max_model_len), 2),
        "kv_gib": round(book.kv.bytes / GIB, 3),
        "unused_gib": round(book.unused_bytes / GIB, 3),
    }


def largest(fitting: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from low to high that fits, if any; fitting falls as the number rises."""
    if high < low or not fitting(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle - 1)
    return low


def largest_value(
    config: Config, key: str, *, low: int, high: int, step: int = 1
) -> Iterator[tuple[str, int]]:
    """The largest multiple of `step` for `key`, from low up to but not including high."""
    count = largest(
        lambda number: fits(with_change(config, key, number * step)),
        -(-low // step),
        (high - 1) // step,
    )
    if count is not None:
        yield key, count * step


def length(config: Config) -> Iterator[tuple[str, int]]:
    """A round number where there is room for one, so that people can say it."""
    now = config.model.max_model_len
    step = next((step for step in (1024, 256) if now > 4 * step), config.kv.block_size)
    rounded = list(largest_value(config, "model.max_model_len", low=step, high=now, step=step))
    size = config.kv.block_size
    yield from rounded or largest_value(
        config, "model.max_model_len", low=size, high=now, step=size
    )


def running(config: Config) -> Iterator[tuple[str, int]]:
    yield from largest_value(
        config, "scheduler.max_num_seqs", low=1, high=config.scheduler.max_num_seqs
    )


def step_tokens(config: Config) -> Iterator[tuple[str, int]]:
    yield from largest_value(
        config,
        "scheduler.max_num_batched_tokens",
        low=config.scheduler.max_num_seqs,
        high=config.scheduler.max_num_batched_tokens,
    )


def largest_cache_bytes(book: Ledger) -> int:
    return int(LARGEST_FRACTION * (book.unused_bytes + book.kv.bytes))


def cache_tokens(config: Config) -> Iterator[tuple[str, int]]:
    """As many whole blocks as the largest cache has, but for the null block."""
    if config.kv.capacity_tokens is not None:
        book = ledger(config)
        blocks = largest_cache_bytes(book) // book.layout.bytes_per_block - 1
        tokens = blocks * config.kv.block_size
        if 0 < tokens < config.kv.capacity_tokens:
            yield "kv.capacity_tokens", tokens


def cache_memory(config: Config) -> Iterator[tuple[str, float]]:
    """The largest, rounded down to 0.01 GiB; for less than a block, room for one long request."""
    if config.kv.memory_gib is not None:
        book = ledger(config)
        if book.layout.usable_blocks == 0:
            blocks = book.layout.blocks_for(book.max_model_len) + 1
            yield "kv.memory_gib", ceil(blocks * book.layout.bytes_per_block / GIB * 100) / 100
            return
        most = int(largest_cache_bytes(book) / GIB * 100) / 100
        if 0 < most < config.kv.memory_gib:
            yield "kv.memory_gib", most


def cache_share(config: Config) -> Iterator[tuple[str, float]]:
    """The smallest larger share, in whole percents."""
    now = config.kv.memory_fraction
    if now is not None:
        for percent in range(int(now * 100) + 1, round(LARGEST_FRACTION * 100) + 1):
            if fits(with_change(config, "kv.memory_fraction", percent / 100)):
                yield "kv.memory_fraction", percent / 100
                return


def narrower(config: Config) -> Iterator[tuple[str, str]]:
    if config.model.dtype == "float32":
        yield "model.dtype", "bfloat16"


def ranks(config: Config) -> Iterator[tuple[str, int]]:
    """The fewest devices; on a CPU there is one."""
    if config.hardware.kind == "cpu":
        return
    for size in TENSOR_SIZES:
        if size > config.parallelism.tensor and fits(
            with_change(config, "parallelism.tensor", size)
        ):
            yield "parallelism.tensor", size
            return


WAYS: tuple[Callable[[Config], Iterator[tuple[str, Value]]], ...] = (
    cache_tokens,
    cache_memory,
    cache_share,
    length,
    running,
    step_tokens,
    narrower,
    ranks,
)
"""Each offers a key and a value, or nothing; from what costs users least to what costs most."""
