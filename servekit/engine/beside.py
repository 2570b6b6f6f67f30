"""A thread that computes, so that the engine's loop can listen meanwhile."""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Does one thing at a time, always in the same thread.

    That matters on a CPU: each thread that computes gets a crew of OpenMP threads of its own, and
    each of these compiles, for the sizes it meets, kernels of its own.
    """

    def __init__(self, name: str = "engine steps") -> None:
        self._work: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._done: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()
        self._heard, self._says = os.pipe()
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def start(self, work: Callable[[], T]) -> None:
        """Begins, once what was begun before is over; results come in the same order."""
        self._work.put(work)

    def fileno(self) -> int:
        """A descriptor that can be read while there is a result, for a poll."""
        return self._heard

    @property
    def done(self) -> bool:
        """There is a result."""
        return not self._done.empty()

    def wait(self) -> None:
        """For the next result, which is thrown away, whether good or bad."""
        self._take()

    def result(self) -> T:
        """Waits for the next; raises what the work raised."""
        result, fault = self._take()
        if fault is not None:
            raise fault
        return result  # type: ignore[return-value]  # None only beside a fault

    def _take(self) -> tuple[T, None] | tuple[None, BaseException]:
        end = self._done.get()
        os.read(self._heard, 1)
        return end

    def _live(self) -> None:
        while True:
            work = self._work.get()
            try:
                self._done.put((work(), None))
            except BaseException as fault:
                self._done.put((None, fault))
            os.write(self._says, b"\0")
