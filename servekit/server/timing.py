"""Where the time of a request went, from what the engine told of it."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from servekit.engine.messages import Event
from servekit.server.wire import Timings
from servekit.telemetry.metrics import Spent

if TYPE_CHECKING:
    from servekit.server.running import Running


def spent_before(events: Sequence[Event], first_token_at: float) -> Spent | None:
    """Until its first token came; None where nothing was told of a seat.

    Engine and server share the clock.
    """
    seat = next((event for event in events if event.kind == "seated"), None)
    if seat is None:
        return None
    chunks = [event for event in events if event.kind == "chunk"]
    return Spent(
        queue_s=seat.end - seat.start,
        prefill_s=first_token_at - seat.end,
        computing_s=sum(chunk.end - chunk.start for chunk in chunks),
    )


def timings(running: "Sequence[Running]", arrived: float) -> Timings:
    """Of the answer that was complete last; counts are of all."""
    last = max(running, key=lambda one: one.last_at)
    return Timings(
        queue_ms=_ms(last.queue_s),
        prefill_ms=_ms(last.prefill_s),
        decode_ms=_ms(last.decode_s),
        total_ms=_ms(time.monotonic() - arrived),
        cached_tokens=sum(one.cached_tokens for one in running),
        preemptions=sum(one.preemptions for one in running),
    )


@overload
def _ms(seconds: float) -> float: ...
@overload
def _ms(seconds: None) -> None: ...
def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
