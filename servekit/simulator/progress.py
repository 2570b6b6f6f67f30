"""How far a long simulation is: one line on a terminal that goes when it is done."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

AFTER_S = 3.0
"""Before this nobody asks."""
EVERY_S = 0.5


class Progress:
    """Called at the end of each request of `total`."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total = total
        self.stream = stream
        self.done = 0
        self.began = time.monotonic()
        self.next = self.began + AFTER_S
        self.width = 0

    def __call__(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now >= self.next:
            self.next = now + EVERY_S
            self._write(now - self.began)

    def _write(self, spent: float) -> None:
        left = spent / self.done * max(0, self.total - self.done)
        text = f"{self.done:,} of {self.total:,} requests, about {left:,.0f} s left"
        self.stream.write(f"\r{text.ljust(self.width)}")
        self.stream.flush()
        self.width = len(text)

    def close(self) -> None:
        if self.width:
            self.stream.write(f"\r{' ' * self.width}\r")
            self.stream.flush()


@contextmanager
def progress(total: int, stream: TextIO | None = None) -> Iterator[Progress | None]:
    """None where nobody looks: `stream`, or else stderr, is no terminal."""
    shown = stream or sys.stderr
    if not shown.isatty():
        yield None
        return
    found = Progress(total, shown)
    try:
        yield found
    finally:
        found.close()
