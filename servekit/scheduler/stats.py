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
    blocks_remembering: int
    """Of the free ones, those whose content can be found."""
    block_size: int
    steps_total: int
    preemptions_total: int
    preempted_tokens_total: int
    """Computed, thrown away, and to be computed again."""
    swaps_total: int
    takeovers_total: int
    """Seats that those who waited took from those who ran."""
    merged_blocks_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    prefix_miss_tokens_total: dict[str, int]
    """By reason."""
    refused_total: dict[str, int]
    """By code of the error."""
    predicted_ttft_s: float | None
    """Of a typical request, came it now; None: nothing is known."""
    slots_unfilled: int
    """Places for a token in blocks in use that hold none yet, of all groups of layers."""
    step_budget_tokens: int
    """Prompt tokens that the last step with prompts had room for."""
