"""Requests that are not yet a generation: their prompt is made, or their grammar tried."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from servekit.errors import ServekitError


@dataclass(slots=True, eq=False)
class Preparation:
    task: "asyncio.Task[object]"
    error: ServekitError | None = None

    def end(self, error: ServekitError) -> None:
        """Whoever prepares raises `error` instead of going on: the server is going down."""
        if self.error is None:
            self.error = error
            self.task.cancel()


@contextmanager
def prepared_among(others: set[Preparation]) -> Iterator[None]:
    """The current task is one of `others` for as long as it is inside."""
    task = asyncio.current_task()
    assert task is not None, "requests are served in tasks"
    one = Preparation(task)
    others.add(one)
    try:
        yield
    except asyncio.CancelledError:
        # cancelled by somebody else too: then that is what it is
        if one.error is None or task.uncancel() > 0:
            raise
        raise one.error from None
    finally:
        others.discard(one)
