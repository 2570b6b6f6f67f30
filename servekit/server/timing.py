"""Where the time of a request went, from what the engine told of it."""

from servekit.server.running import Running
from servekit.telemetry.metrics import Spent


def spent_before(one: Running) -> Spent | None:
    """Until its first token came; None where the engine told nothing of that."""
    if one.queue_s is None or one.prefill_s is None:
        return None
    chunks = [event for event in one.events if event.kind == "chunk"]
    return Spent(
        queue_s=one.queue_s,
        prefill_s=one.prefill_s,
        computing_s=sum(chunk.end - chunk.start for chunk in chunks),
    )
