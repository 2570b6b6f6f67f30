"""What a start-up log measured on its worst rank, and what a plan says of the same.

The worst rank has the least memory left for the cache. vLLM asks for a share of the whole device
and subtracts what it measured; a plan is put beside it by that same rule, so that the two differ
only in what they say of weights, activations and runtime.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from servekit.config.schema import Config
from servekit.config.targets import Constants
from servekit.planner.startup.boot_lines import BootLog
from servekit.spec.components import CONTEXT_GIB
from servekit.spec.kv import KvLayout
from servekit.spec.memory import Ledger, ledger
from servekit.spec.model import GIB

Unit = Literal["GiB", "blocks", "tokens", "requests"]


@dataclass(frozen=True, slots=True)
class Measured:
    """GiB of the worst rank; None where the log does not say. `runtime` has the context too."""

    ranks: int
    weights: float | None
    activations: float | None
    runtime: float | None
    graphs: float | None
    kv: float | None
    requested: float | None
    """what the engine took for itself: a share of the device"""
    context: float
    """taken before that share was, so outside it"""
    graphs_subtracted: bool
    num_blocks: int | None
    kv_tokens: int | None
    concurrency: float | None
    concurrency_tokens: int | None


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity; `calibrated` is what the plan says of it with the constants of the log."""

    name: str
    unit: Unit
    planned: float
    measured: float
    calibrated: float

    def error_percent(self, said: float) -> float:
        return 100 * (said - self.measured) / self.measured if self.measured else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "planned": self.planned,
            "measured": self.measured,
            "error_percent": round(self.error_percent(self.planned), 3),
            "calibrated": self.calibrated,
            "calibrated_error_percent": round(self.error_percent(self.calibrated), 3),
        }


ROUNDING = 0.03
"""Of a printed cache size and concurrency, at worst, for caches that are worth planning."""

LEAST = ("kv", "requested", "total", "free_at_start")
"""Of which the smallest of all ranks is the worst; of the others the largest."""


def measured(log: BootLog, config: Config) -> Measured:
    """Of the rank that has the least left for its cache; what it does not say, from the others."""
    sizes = worst_rank(list(log.ranks.values()))
    weights, context = sizes.get("weights"), context_gib(sizes, config)
    activations = sizes.get("activations")
    if activations is None and weights is not None and "peak_torch" in sizes:
        activations = max(0.0, sizes["peak_torch"] - weights)
    outside = non_torch_gib(sizes, activations)
    runtime = None if outside is None else outside + context
    return Measured(
        ranks=max(1, sum("weights" in rank for rank in log.ranks.values())),
        weights=weights,
        activations=activations,
        runtime=sizes.get("outside_torch", runtime),
        graphs=sizes.get("graphs", sizes.get("graphs_estimate")),
        kv=sizes.get("kv"),
        requested=sizes.get("requested"),
        context=0.0 if "outside_torch" in sizes else context,
        graphs_subtracted="graphs_estimate" in sizes,
        num_blocks=whole(log.engine.get("num_blocks")),
        kv_tokens=whole(log.engine.get("kv_tokens")),
        concurrency=log.engine.get("concurrency"),
        concurrency_tokens=whole(log.engine.get("concurrency_tokens")),
    )


def worst_rank(ranks: list[dict[str, float]]) -> dict[str, float]:
    if not ranks:
        return {}
    worst = min(ranks, key=lambda rank: (rank.get("kv", math.inf), -rank.get("weights", 0.0)))
    found = dict(worst)
    for name in {name for rank in ranks for name in rank} - found.keys():
        values = [rank[name] for rank in ranks if name in rank]
        found[name] = min(values) if name in LEAST else max(values)
    return found


def whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def context_gib(sizes: Mapping[str, float], config: Config) -> float:
    """Of a process before it measures: what was not free at its start, else a published number."""
    if config.hardware.kind == "cpu":
        return 0.0
    if "total" in sizes and "free_at_start" in sizes:
        return max(0.0, sizes["total"] - sizes["free_at_start"])
    several = config.parallelism.expert_group * config.parallelism.pipeline > 1
    return CONTEXT_GIB["several" if several else "one"]


def non_torch_gib(sizes: Mapping[str, float], activations: float | None) -> float | None:
    """Said, or what is left of the share that was asked for; None where neither can be had."""
    if "non_torch" in sizes:
        return sizes["non_torch"]
    if "weights" not in sizes:
        return None
    if "consumed" in sizes:
        return max(0.0, sizes["consumed"] - sizes["weights"])
    if activations is None or not {"requested", "kv"} <= sizes.keys():
        return None
    rest = sizes["requested"] - sizes["weights"] - activations - sizes["kv"]
    return max(0.0, rest - sizes.get("graphs_estimate", 0.0))


def constants(config: Config, found: Measured, source: str, *, same_steps: bool) -> Constants:
    """What later plans may use. Activations hold only for steps as large as those of the words."""
    book = ledger(without_constants(config))
    activations = found.activations if same_steps else None
    return Constants(
        source=source,
        weights_ratio=ratio(found.weights, book.weights.bytes),
        activations_ratio=ratio(activations, book.activations.bytes),
        runtime_gib=not_negative(found.runtime),
        graphs_gib=not_negative(found.graphs),
    )


def not_negative(size_gib: float | None) -> float | None:
    """A log may say less than nothing, of memory that another process gave back meanwhile."""
    return None if size_gib is None else max(0.0, round(size_gib, 4))


def ratio(found: float | None, planned_bytes: int) -> float | None:
    if found is None or found <= 0 or planned_bytes <= 0:
        return None
    return round(found * GIB / planned_bytes, 5)


def without_constants(config: Config) -> Config:
    return with_constants(config, None)


def with_constants(config: Config, found: Constants | None) -> Config:
    calibration = config.calibration.model_copy(update={"constants": found})
    return config.model_copy(update={"calibration": calibration})


def compared(config: Config, found: Measured, learnt: Constants) -> Iterator[Compared]:
    """Every quantity that both the log and a plan speak of."""
    before, after = without_constants(config), with_constants(config, learnt)
    books = ledger(before), ledger(after)
    for name in ("weights", "activations", "runtime", "graphs"):
        value = getattr(found, name)
        planned, calibrated = (getattr(book, name).bytes / GIB for book in books)
        if value is not None:
            yield Compared(name, "GiB", planned, value, calibrated)
    if found.kv is None:
        if found.kv_tokens is not None:
            tokens = (float(book.layout.capacity_tokens) for book in books)
            yield Compared("capacity", "tokens", next(tokens), found.kv_tokens, next(tokens))
        return
    pools = [found.kv, found.kv]
    if found.requested is not None:
        pools = [pool_gib(book, found) for book in books]
        yield Compared("KV cache", "GiB", pools[0], found.kv, pools[1])
    first, last = (layout_of(config, pool) for pool in pools)
    if found.num_blocks is not None:
        yield Compared("blocks", "blocks", first.num_blocks, found.num_blocks, last.num_blocks)
    if found.kv_tokens is not None and first.uniform:
        yield Compared(
            "capacity", "tokens", first.capacity_tokens, found.kv_tokens, last.capacity_tokens
        )
    if found.concurrency is not None and found.concurrency_tokens:
        at = found.concurrency_tokens
        yield Compared(
            f"of {at:,} tokens",
            "requests",
            first.max_concurrency(at),
            found.concurrency,
            last.max_concurrency(at),
        )


def holds_otherwise(config: Config, found: Measured) -> tuple[float, float] | None:
    """Requests that the log's cache holds, and those that the planned layout would have in as many
    bytes, where they are further apart than rounding: the arithmetic is exact, so another layout.

    Of stages only some may have printed their cache, so nothing is said of a pipeline.
    """
    if found.kv is None or found.concurrency is None or config.parallelism.pipeline > 1:
        return None
    said = layout_of(config, found.kv).max_concurrency(found.concurrency_tokens or 1)
    apart = abs(said - found.concurrency) > ROUNDING * found.concurrency + 0.01
    return (found.concurrency, said) if apart else None


def pool_gib(book: Ledger, found: Measured) -> float:
    """The cache that a plan's components leave of the share that the log's engine asked for."""
    assert found.requested is not None
    runtime = (book.runtime.bytes - book.layout.bytes_per_block) / GIB
    left = found.requested - (book.weights.bytes + book.activations.bytes) / GIB
    left -= max(0.0, runtime - found.context)
    return max(0.0, left - (book.graphs.bytes / GIB if found.graphs_subtracted else 0.0))


def layout_of(config: Config, size_gib: float) -> KvLayout:
    """Of a cache of that size on the worst rank."""
    sizes = {"memory_gib": size_gib, "capacity_tokens": None, "memory_fraction": None}
    return ledger(config.model_copy(update={"kv": config.kv.model_copy(update=sizes)})).layout
