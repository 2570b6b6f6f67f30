"""One request of a workload: when it comes, how long it is, and what it has in common with others.

A simulator needs of a prompt only which prompts begin alike. So a prompt is a few runs, each of one
token repeated: what two requests share is the same runs, and what is a request's own is a run of a
token that no other has. Two prompts are equal up to a position exactly where their runs are.
"""

from itertools import chain, repeat
from random import Random
from typing import Literal, NamedTuple

SloClass = Literal["interactive", "batch"]

Runs = tuple[tuple[int, int], ...]
"""(token, how often), in order."""


class Arrival(NamedTuple):
    """Lengths in tokens, times in seconds since the start of the workload."""

    at: float
    prompt_tokens: int
    output_tokens: int
    runs: Runs
    """Of its prompt; their lengths add up to `prompt_tokens`."""
    answer: int
    """The token of its answer; no other request has it."""
    tenant: str = ""
    priority: int = 0
    slo_class: SloClass = "interactive"
    session: int = 0
    """The conversation; those of one have a number that no other conversation has."""
    turn: int = 0
    """Requests of the conversation before this one."""
    prefix: int | None = None
    """Which of the shared starts it has; None: of its own."""
    is_cut: bool = False
    """It was longer than the model holds."""

    @property
    def prompt(self) -> list[int]:
        """Made anew at each call; `prompt_tokens` tokens."""
        return prompt(self)


def prompt(arrival: Arrival, vocabulary: int | None = None) -> list[int]:
    """The tokens of its prompt, `prompt_tokens` of them, each 0 or more.

    With a `vocabulary` they are below it, for an engine that looks them up: each run becomes tokens
    drawn by its own token, so that prompts still begin alike where their runs do.
    """
    if vocabulary is not None:
        return list(chain.from_iterable(_drawn(*run, vocabulary) for run in arrival.runs))
    tokens: list[int] = []
    for token, count in arrival.runs:
        tokens += [token] * count
    return tokens


def _drawn(token: int, count: int, vocabulary: int) -> list[int]:
    draw = Random(token).random
    return [int(draw() * vocabulary) for _ in repeat(None, count)]


def grown(before: Arrival, prompt_tokens: int, token: int) -> Runs:
    """A prompt that repeats the one before and its answer as far as it is longer than them.

    What is left of it is a run of `token`, at least once: somebody says something new.
    """
    left = prompt_tokens - 1
    runs = []
    for old, count in (*before.runs, (before.answer, before.output_tokens)):
        taken = min(count, left)
        if taken == 0:
            break
        runs.append((old, taken))
        left -= taken
    return (*runs, (token, left + 1))
