"""The device a section runs on, how it is timed there, and at what sizes."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")
FLUSH_BYTES = 512 << 20
"""More than any chip's cache, written before each call so that it finds nothing there; meanwhile
the host launches what is timed."""
WARM_UP = 3


@dataclass(slots=True)
class Bench:
    """`dry`: the same path on a CPU, at tiny sizes, by the interpreter; nothing is timed."""

    dry: bool
    deadline: float
    """By time.monotonic; a section that comes later is left out, and says so."""
    copy_gb_s: float | None = None
    """Measured: bytes read and written a second."""

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def of(self, full: T, tiny: T) -> T:
        return tiny if self.dry else full

    def randn(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(size, device=self.device).to(dtype)

    def seconds(self, *calls: Callable[[], object], runs: int = 20) -> list[float | None]:
        """Of each, the median; they take turns. In a dry run each is called once, untimed."""
        if self.dry:
            for call in calls:
                call()
            return [None] * len(calls)
        for call in calls:
            for _ in range(WARM_UP):
                call()
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        marks = [[(_mark(), _mark()) for _ in calls] for _ in range(runs)]
        for turn in marks:
            for call, (begin, end) in zip(calls, turn, strict=True):
                flush.zero_()
                begin.record()
                call()
                end.record()
        torch.cuda.synchronize()
        return [
            statistics.median(turn[place][0].elapsed_time(turn[place][1]) / 1000 for turn in marks)
            for place in range(len(calls))
        ]

    def measure_copy(self) -> float | None:
        """GB/s, read and written, of the library's copy of a GiB."""
        source = torch.empty(1 << 28 if not self.dry else 1 << 10, device=self.device)
        to = torch.empty_like(source)
        (taken,) = self.seconds(lambda: to.copy_(source))
        moved = 2 * source.numel() * source.element_size()
        self.copy_gb_s = gb_s(moved, taken)
        return self.copy_gb_s

    def share_of_copy(self, rate: float | None) -> float | None:
        return None if rate is None or not self.copy_gb_s else rate / self.copy_gb_s


def _mark() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def gb_s(moved: float, seconds: float | None) -> float | None:
    return None if seconds is None else moved / seconds / 1e9


def us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def ratio(of: float | None, over: float | None) -> float | None:
    return None if of is None or not over else of / over


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference over the largest value that was wanted; NaN is infinitely far off."""
    difference = (got.double() - wanted.double()).abs().max()
    most = wanted.double().abs().max().clamp_min(1e-30)
    found = (difference / most).item()
    return found if found == found else float("inf")
