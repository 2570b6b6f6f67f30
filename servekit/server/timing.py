"""Where the time of a request went, from what the engine told of it."""

from collections.abc import Sequence

from servekit.engine.messages import Event
from servekit.telemetry.metrics import Spent


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
