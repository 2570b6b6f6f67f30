"""Means and spreads of a workload, for who plans with closed forms."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from servekit.config.targets import WorkloadConfig
from servekit.workload.drawn import said_anew
from servekit.workload.read import trace_of
from servekit.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Moments:
    """Lengths in tokens, of all requests; spreads over their means; nothing is cut to a model."""

    rate: float
    """Requests a second, over all copies; of a closed workload, what it was declared with."""
    arrival_cv: float
    """Of the times between those that come by themselves."""
    prompt: float
    prompt_cv: float
    output: float
    output_cv: float
    repeated: float
    """Tokens of a prompt that an earlier one began with, on average: hits of an endless cache."""
    turns: float
    """Requests of a conversation."""
    requests: int | None = None
    """How many there are; None: without end."""


def moments(work: WorkloadConfig) -> Moments:
    """As declared; of a trace, as it is in the trace. ConfigError as of `source`."""
    return _declared(work) if work.trace is None else of_trace(trace_of(work.trace), work)


def of_trace(trace: Trace, work: WorkloadConfig) -> Moments:
    """Its times as fast as it is replayed; where it has no times, as declared.

    So too where all come at once: then there is no rate.
    """
    prompt, prompt_cv = mean_and_cv(trace.prompt_tokens)
    output, output_cv = mean_and_cv(trace.output_tokens)
    rate, arrival_cv = work.request_rate, work.arrival_cv
    if trace.at and trace.at[-1] > 0:
        gap, arrival_cv = mean_and_cv([after - before for before, after in pairwise(trace.at)])
        rate = work.trace_speed / gap
    return Moments(
        rate=rate,
        arrival_cv=arrival_cv,
        prompt=prompt,
        prompt_cv=prompt_cv,
        output=output,
        output_cv=output_cv,
        repeated=sum(_repeated(trace)) / len(trace),
        turns=len(trace) / len(trace.conversations()),
        requests=len(trace) if trace.at else None,
    )


def mean_and_cv(values: Sequence[float]) -> tuple[float, float]:
    """Of at least one value; a spread of 0 where the mean is."""
    mean = math.fsum(values) / len(values)
    if mean == 0:
        return 0.0, 0.0
    square = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return mean, math.sqrt(square) / mean


def _declared(work: WorkloadConfig) -> Moments:
    anew = said_anew(work)
    later, spread = work.turns - 1, work.prompt_cv
    before = anew + work.output_tokens
    # of the first turn and the later ones, of the answers between, of how many turns there were
    square = (
        (spread * (work.shared_prefix_tokens + anew)) ** 2
        + later * (spread * anew) ** 2
        + later * (work.output_cv * work.output_tokens) ** 2
        + work.turns * later * before**2
    )
    return Moments(
        rate=work.request_rate,
        arrival_cv=work.arrival_cv,
        prompt=float(work.prompt_tokens),
        prompt_cv=math.sqrt(square) / work.prompt_tokens,
        output=float(work.output_tokens),
        output_cv=work.output_cv,
        repeated=work.shared_prefix_tokens + later * before,
        turns=work.turns,
    )


def _repeated(trace: Trace) -> Iterable[int]:
    """Of each prompt, the tokens that it begins with as an earlier one did."""
    if not trace.blocks:
        said: dict[int, int] = {}
        for prompt, output, session in zip(
            trace.prompt_tokens, trace.output_tokens, trace.sessions, strict=False
        ):
            yield min(said.get(session, 0), prompt - 1)
            said[session] = prompt + output
        return
    seen: set[int] = set()
    for prompt, blocks in zip(trace.prompt_tokens, trace.blocks, strict=True):
        known = next((n for n, block in enumerate(blocks) if block not in seen), len(blocks))
        yield min(known * trace.block_size, prompt)
        seen.update(blocks)
