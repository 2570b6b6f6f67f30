"""Who gives blocks back when there are none, and whether what is in them is kept."""

from collections.abc import Callable, Sequence

from servekit.config.scheduling import SchedulerConfig
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings, StepTime

Remaining = Callable[[Request], float]
"""Output tokens that a request is expected to go on for."""

ABOUT_TO_FINISH = 16.0
"""Tokens: who has no more to go gives all its blocks back by itself soon."""

Cost = tuple[float, ...]


def cost(request: Request, kv: KvBlocks, remaining: Remaining) -> Cost:
    """Of preempting it, the smallest first: tokens to compute again for each block freed.

    Most cost about a block's tokens a block, so the rest decides often: not who is about to
    finish, then who has least to compute again, then who came last.
    """
    again = max(0, request.computed - kv.surviving_tokens(request))
    freed = kv.freed_by(request)
    each = round(again / freed) if freed else float("inf")
    nearly = remaining(request) <= ABOUT_TO_FINISH
    return (each, nearly, again, -request.arrived, -request.id)


def last_arrived(request: Request, kv: KvBlocks, remaining: Remaining) -> Cost:
    return (-request.arrived, -request.id)


VICTIMS: dict[str, Callable[[Request, KvBlocks, Remaining], Cost]] = {
    "cheapest": cost,
    "last_arrived": last_arrived,
}
"""The smallest goes first."""


def victim(
    candidates: Sequence[Request], kv: KvBlocks, config: SchedulerConfig, remaining: Remaining
) -> Request:
    """Who has been preempted `max_preemptions` times is only taken if all have.

    `candidates` is never empty, and has not the first of those that run.
    """
    rule, most = VICTIMS[config.victim], config.max_preemptions
    spared = [request for request in candidates if request.preemptions < most]
    return min(spared or candidates, key=lambda request: rule(request, kv, remaining))


def swap_or_again_s(
    blocks: int, computed: int, there: int, step_time: StepTime, block_copy_s: float
) -> tuple[float, float]:
    """Seconds to copy so many blocks to host memory and back, and to compute again what of
    `computed` tokens is not `there` any more.

    The copies stop the step they are in; computing again goes with others' decodes, so only what
    it adds to their step counts.
    """
    again = max(0, computed - there)
    beside = step_time.seconds(1, computed)
    both = step_time.seconds(1, computed, [(again, there)] if again else [])
    return 2 * blocks * block_copy_s, both - beside


def by_swap(request: Request, kv: KvBlocks, settings: Settings) -> bool:
    """Whether copying its blocks to host memory and back takes less than computing them again."""
    blocks = sum(1 for table in request.tables for block in table if block)
    step_time, copy_s = settings.step_time, settings.block_copy_s
    if step_time is None or copy_s is None or not 0 < blocks <= kv.num_host_free:
        return False
    there = kv.surviving_tokens(request)
    copies, again = swap_or_again_s(blocks, request.computed, there, step_time, copy_s)
    return copies < again
