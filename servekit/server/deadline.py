"""The client's own deadline: the header says how long an answer is worth waiting for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from servekit.errors import DeadlineExceeded, RequestError

HEADER = "x-request-timeout-ms"
MAX_MS = 86_400_000
"""A day."""


def deadline(header: str | None, arrived: float) -> float | None:
    """When the request is to be given up, on the clock of `arrived`; raises RequestError."""
    if header is None:
        return None
    header = header.strip(" \t")
    if not header.isdecimal() or not 1 <= (milliseconds := int(header[:12])) <= MAX_MS:
        raise RequestError(
            f"{HEADER} is {header[:20]!r}, allowed are whole milliseconds from 1 to {MAX_MS}",
            param=HEADER,
        )
    return arrived + milliseconds / 1000


@asynccontextmanager
async def until(deadline: float | None, arrived: float) -> AsyncIterator[None]:
    """Gives up what is inside at the deadline, and raises DeadlineExceeded."""
    try:
        # the clock of the event loop is that of `arrived`
        async with asyncio.timeout_at(deadline) as limit:
            yield
    except TimeoutError:
        if deadline is None or not limit.expired():
            raise
        raise missed(deadline, arrived) from None


def missed(deadline: float, arrived: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the request was not done {(deadline - arrived) * 1000:.0f} ms after it came, which is "
        f"its own {HEADER}; what was running for it has been given up"
    )
