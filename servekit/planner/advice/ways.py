"""The changes that advice is made of: for each way, values to try from the gentlest on.

A way looks at a configuration that is refused and offers words; the search takes the first that
passes. Sizes that can be counted are searched for the largest that still fits.
"""

from collections.abc import Callable, Iterator
from math import ceil

from servekit.config.base import DTYPE_BYTES
from servekit.planner.advice.change import Change, Point, known_options
from servekit.planner.outcome import book_of
from servekit.spec.memory import Ledger
from servekit.spec.model import GIB
from servekit.spec.tensors import ceil_div

Way = Callable[[Point, Ledger], Iterator[Change]]

RANKS = (2, 4, 8, 16)
MOST_HALVES = 4
LARGEST_FRACTION = 0.95
"""Of what is free after weights, activations and runtime; the rest is for what is only guessed."""


def fits(point: Point | None) -> bool:
    return point is not None and book_of(point.config).verdict == "fits"


def weights_alone_are_too_large(book: Ledger) -> bool:
    """No smaller cache, and no smaller step, makes room for them."""
    return book.weights.bytes + book.runtime.bytes > book.total_bytes


def largest(fitting: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from low to high that fits, if any; fitting falls as the number rises."""
    if high < low or not fitting(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle - 1)
    return low


def fewer(
    point: Point, book: Ledger, key: str, *, low: int, high: int, steps: tuple[int, ...]
) -> Iterator[Change]:
    """Numbers for `key` from `low` up to but not including `high`.

    Where memory lacks, the largest multiple that fits of the first of `steps` that has one; else
    halves of what there is.
    """
    if weights_alone_are_too_large(book):
        return
    if book.verdict == "fits":
        halves = (high // 2**times for times in range(1, MOST_HALVES + 1))
        yield from (Change(key, size) for size in halves if size >= low)
        return
    for step in steps:
        count = largest(
            lambda number, step=step: fits(point.then(Change(key, number * step))),  # type: ignore[misc]
            ceil_div(low, step),
            (high - 1) // step,
        )
        if count is not None:
            yield Change(key, count * step)
            return


def length(point: Point, book: Ledger) -> Iterator[Change]:
    """A round number where there is room for one, so that people can say it."""
    now, size = point.config.model.max_model_len, point.config.kv.block_size
    steps = (*(step for step in (1024, 256) if now > 4 * step), size)
    if book.verdict != "fits":
        yield from fewer(point, book, "model.max_model_len", low=size, high=now, steps=steps)


def running(point: Point, book: Ledger) -> Iterator[Change]:
    now = point.config.scheduler.max_num_seqs
    yield from fewer(point, book, "scheduler.max_num_seqs", low=1, high=now, steps=(8, 1))


def step_tokens(point: Point, book: Ledger) -> Iterator[Change]:
    scheduler = point.config.scheduler
    least = 64 if "scheduler.max_num_seqs" in point.derived else scheduler.max_num_seqs
    key, now = "scheduler.max_num_batched_tokens", scheduler.max_num_batched_tokens
    yield from fewer(point, book, key, low=least, high=now, steps=(256, 1))


def largest_cache_bytes(book: Ledger) -> int:
    free = book.unused_bytes + book.kv.bytes
    return min(int(LARGEST_FRACTION * free), free - book.band_bytes)


def cache_tokens(point: Point, book: Ledger) -> Iterator[Change]:
    """As many as fit in the largest cache."""
    now, size = point.config.kv.capacity_tokens, point.config.kv.block_size
    if now is None or book.verdict == "fits":
        return
    room = largest_cache_bytes(book)

    def fitting(blocks: int) -> bool:
        there = point.then(Change("kv.capacity_tokens", blocks * size))
        return there is not None and book_of(there.config).kv.bytes <= room

    blocks = largest(fitting, 1, (now - 1) // size)
    if blocks is not None:
        yield Change("kv.capacity_tokens", blocks * size)


def cache_memory(point: Point, book: Ledger) -> Iterator[Change]:
    """The largest, rounded down to 0.01 GiB; for too little, the least that passes."""
    now = point.config.kv.memory_gib
    if now is None or book.verdict == "fits":
        return
    most = int(largest_cache_bytes(book) / GIB * 100) / 100
    if 0 < most < now:
        yield Change("kv.memory_gib", most)
    elif most > now:
        least = int(now * 100) + 1
        missing = largest(
            lambda less: fits(
                point.then(Change("kv.memory_gib", (round(most * 100) - less) / 100))
            ),
            0,
            round(most * 100) - least,
        )
        if missing is not None:
            yield Change("kv.memory_gib", (round(most * 100) - missing) / 100)


def cache_share(point: Point, book: Ledger) -> Iterator[Change]:
    """The smallest larger share that fits, in whole percents, then half as much again each."""
    now, key = point.config.kv.memory_fraction, "kv.memory_fraction"
    most = round(LARGEST_FRACTION * 100)
    if now is None or weights_alone_are_too_large(book):
        return
    least = int(now * 100) + 1
    missing = largest(
        lambda less: fits(point.then(Change(key, (most - less) / 100))), 0, most - least
    )
    percent = most - missing if missing is not None else most + 1
    while percent <= most:
        yield Change(key, percent / 100)
        percent = max(percent + 1, percent * 3 // 2)


def narrower_cache(point: Point, book: Ledger) -> Iterator[Change]:
    if point.config.kv.dtype in DTYPE_BYTES:
        yield Change("kv.dtype", "fp8")


def narrower_model(point: Point, book: Ledger) -> Iterator[Change]:
    if point.config.model.dtype == "float32":
        yield Change("model.dtype", "bfloat16" if point.config.hardware.bf16 else "float16")


def narrower_weights(point: Point, book: Ledger) -> Iterator[Change]:
    """Where the source has 16 bits: it can be packed as it is loaded."""
    if point.config.quantization.weights == "none":
        yield Change("quantization.weights", "fp8")
        yield Change("quantization.weights", "int4_g128")


def ranks(point: Point, book: Ledger) -> Iterator[Change]:
    """The fewest devices that share each layer; on a CPU there is one."""
    if point.config.hardware.kind != "cpu":
        now = point.config.parallelism.tensor
        yield from (Change("parallelism.tensor", size) for size in RANKS if size > now)


def stages(point: Point, book: Ledger) -> Iterator[Change]:
    if point.config.hardware.kind != "cpu":
        now = point.config.parallelism.pipeline
        yield from (Change("parallelism.pipeline", size) for size in RANKS[:3] if size > now)


def copies(point: Point, book: Ledger) -> Iterator[Change]:
    """For traffic, not for memory."""
    if point.config.hardware.kind != "cpu" and book.verdict == "fits":
        now = point.config.parallelism.data
        yield from (Change("parallelism.data", size) for size in RANKS if size > now)


def guessing(point: Point, book: Ledger) -> Iterator[Change]:
    """What the model brings itself, else copies from the text."""
    if point.config.speculative.method == "none" and book.verdict == "fits":
        yield Change("speculative", "mtp" if point.config.model.shape.mtp_layers else "ngram")


def cards(point: Point, book: Ledger) -> Iterator[Change]:
    """Devices of the same kind with more of what lacks, the cheapest first."""
    now = point.config.hardware
    if now.kind == "cpu":
        return
    lacking = ("memory_gib",) if book.verdict != "fits" else ("bandwidth_gb_s", "bf16_tflops")
    known = known_options("hardware")
    found = [
        (float(card["usd_per_hour"]), name)
        for name, card in known.items()
        if card.get("kind") == now.kind
        and card.get("usd_per_hour")
        and any(float(card.get(field) or 0) > getattr(now, field) for field in lacking)
    ]
    yield from (Change("hardware", name) for _, name in sorted(found))


def machine(point: Point, book: Ledger) -> Iterator[Change]:
    """A machine with more memory, in sizes that are sold."""
    now = point.config.hardware
    if now.kind == "cpu" and book.verdict != "fits":
        for size in (2**power for power in range(ceil(now.memory_gib).bit_length() - 1, 13)):
            if size > now.memory_gib:
                yield Change("hardware.memory_gib", size)


WAYS: tuple[Way, ...] = (
    cache_tokens,
    cache_memory,
    cache_share,
    length,
    running,
    step_tokens,
    narrower_model,
    narrower_cache,
    cards,
    machine,
    narrower_weights,
    ranks,
    guessing,
    stages,
    copies,
)
"""From what costs users least to what costs most."""


def rounder_length(point: Point, book: Ledger) -> Iterator[Change]:
    for tokens in (32768, 8192, 2048):
        if tokens < point.config.model.max_model_len and book.verdict != "fits":
            yield Change("model.max_model_len", tokens)


def fewer_seats(point: Point, book: Ledger) -> Iterator[Change]:
    for seats in (128, 32, 8):
        if seats < point.config.scheduler.max_num_seqs:
            yield Change("scheduler.max_num_seqs", seats)


FIRST_WAYS: tuple[Way, ...] = (
    rounder_length,
    fewer_seats,
    narrower_model,
    narrower_cache,
    cards,
    narrower_weights,
    ranks,
    guessing,
    stages,
    copies,
)
"""What the first of two changes may be: one that need not suffice alone."""

FREE_FIRST_WAYS: tuple[Way, ...] = (rounder_length, fewer_seats, narrower_model)
"""Those that need no other device and that this release runs."""

FASTER_WAYS: tuple[Way, ...] = (
    narrower_weights,
    cards,
    ranks,
    guessing,
    copies,
    narrower_cache,
    running,
)
"""Both of two changes for what fits and is too slow, the strongest first."""
