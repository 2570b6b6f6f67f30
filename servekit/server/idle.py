"""A watch over silence that costs next to nothing while there is none."""

import asyncio
from collections.abc import Callable

TOLERANCE_S = 0.002
"""The event loop counts milliseconds."""


class Idle:
    """Calls `wake` whenever nothing was noted for `seconds`.

    One timer looks at when something was last noted, so that noting is an assignment and not a
    timer for every token.
    """

    def __init__(self, seconds: float, wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._wake = seconds, wake
        self.note()
        self._timer = self._loop.call_later(seconds, self._look)

    def note(self) -> None:
        self._since = self._loop.time()

    @property
    def over(self) -> bool:
        """Whether it is time to say something."""
        return self._loop.time() - self._since >= self._seconds - TOLERANCE_S

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        rest_s = self._since + self._seconds - self._loop.time()
        if self.over:
            self._wake()
            rest_s = self._seconds
        self._timer = self._loop.call_later(max(rest_s, TOLERANCE_S), self._look)
