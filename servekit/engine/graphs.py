"""Captured decode steps: a step in which everybody decodes is one launch, not some hundred.

A graph is of one number of rows, so there is one for each size of a ladder, and a step is padded to
the next. All other steps run as ever. A step that cannot be captured whole is not captured at all:
a graph for each of its parts would be launched some hundred times again.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from servekit.engine.static_inputs import StaticDecodes
from servekit.model.inputs import StepInputs

logger = logging.getLogger(__name__)

Replay = Callable[[], torch.Tensor]
"""Runs a graph; logits, float32 [size, vocab_size], at a fixed place."""


class Capturer(Protocol):
    """What makes graphs of decode steps on one device."""

    def capture(self, size: int) -> Replay:
        """Of a step of `size` rows; raises torch.OutOfMemoryError, or what stands in the way."""
        ...

    def used_bytes(self) -> int:
        """Of the device's memory, by whomever."""
        ...


@dataclass(frozen=True, slots=True)
class Captured:
    """Graphs by size, what they took, and why there are not more; "" if all are there."""

    replays: dict[int, Replay] = field(default_factory=dict)
    bytes: int = 0
    why: str = ""


def ladder(most: int) -> list[int]:
    """Sizes up to `most`: 1, 2, 4, then 8 apart, from 256 on 32 apart; padding costs little where
    a step is bound by the weights it reads."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 32)]
    return [size for size in sizes if size < most] + [most]


def capture(
    capturer: Capturer,
    sizes: Sequence[int],
    *,
    budget_bytes: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Captured:
    """Largest first, whose memory the others share; fewer rather than none, none rather than a
    fault. The largest that does not fit is left out, until one does; then the first ends it.
    """
    began, replays, why = capturer.used_bytes(), dict[int, Replay](), ""
    for done, size in enumerate(sorted(sizes, reverse=True)):
        report(done, len(sizes))
        if (spent := capturer.used_bytes() - began) > budget_bytes:
            why = f"they took {spent / 2**20:.0f} MiB of {budget_bytes / 2**20:.0f} MiB"
            break
        try:
            replays[size] = capturer.capture(size)
        except Exception as fault:
            if not out_of_memory(fault):
                why = f"a step of {size} rows cannot be captured: {type(fault).__name__}: {fault}"
                replays.clear()
                break
            why = f"there is no memory for one of {size} rows"
            if replays:
                break
    report(len(sizes), len(sizes))
    return Captured(replays, max(0, capturer.used_bytes() - began), why)


def out_of_memory(fault: BaseException | None) -> bool:
    """Also where ending a capture raised something else after it."""
    while fault is not None:
        if isinstance(fault, torch.OutOfMemoryError):
            return True
        fault = fault.__cause__ or fault.__context__
    return False


class DecodeGraphs:
    def __init__(self, captured: Captured, static: StaticDecodes) -> None:
        self.captured = captured
        self.static = static
        self.sizes = sorted(captured.replays)

    def logits(self, step: StepInputs) -> torch.Tensor | None:
        """Those of each row, as the decoder's, valid until the next call; None: no graph is of such
        a step."""
        rows = len(step.query_lens)
        place = bisect_left(self.sizes, rows)
        if step.decodes != rows or place == len(self.sizes):
            return None
        size = self.sizes[place]
        self.static.fill(step, size)
        return self.captured.replays[size]()[:rows]

    def log(self) -> None:
        size = self.captured.bytes / 2**20
        logger.info("captured %d sizes of decode steps in %.0f MiB", len(self.sizes), size)
        if self.captured.why:
            logger.warning("not all decode steps were captured: %s", self.captured.why)
