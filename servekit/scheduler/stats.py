"""The scheduler in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Now, or since the start where the name ends in `_total`.

    `waiting` includes `held`; free blocks include those that are cached but held by nobody; a
    prompt is counted in the prefix totals once, when it is first seated.
    """

    running: int
    waiting: int
    held: int
    waiting_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    block_size: int
    steps_total: int
    preemptions_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
