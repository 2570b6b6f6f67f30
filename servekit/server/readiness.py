"""Why a server that can serve should get no new requests for now."""

from servekit.config.scheduling import SchedulerConfig
from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import Stats
from servekit.server.lifecycle import Lifecycle


def reasons_to_send_elsewhere(
    lifecycle: Lifecycle, heartbeat: Heartbeat, stats: Stats | None, scheduler: SchedulerConfig
) -> list[str]:
    """It is about to go, its engine is late, or the next request would be refused."""
    reasons = []
    if lifecycle.going_down:
        reasons.append("this server is about to shut down")
    if heartbeat.late is not None:
        reasons.append(heartbeat.late)
    return reasons if stats is None else reasons + _full(stats, scheduler)


def _full(stats: Stats, scheduler: SchedulerConfig) -> list[str]:
    """Where the queue is at a limit beyond which requests get 429."""
    limits = {
        "scheduler.max_num_waiting": (stats.waiting, scheduler.max_num_waiting, "requests wait"),
        "scheduler.max_waiting_tokens": (
            stats.waiting_tokens,
            scheduler.max_waiting_tokens,
            "prompt tokens wait",
        ),
        "scheduler.max_wait_s": (
            stats.predicted_ttft_s or 0.0,
            scheduler.max_wait_s,
            "seconds are predicted until a first token",
        ),
    }
    return [
        f"{value:.6g} {what}, {key} is {limit:.6g}"
        for key, (value, limit, what) in limits.items()
        if limit is not None and value >= limit
    ]
