"""A step's sampling parameters as tensors, for a kernel that reads all of them on the device."""

from collections.abc import Sequence

import numpy as np
import torch

from servekit.engine.constraint import masks
from servekit.engine.sampling_state import SamplingState
from servekit.kernels.adjust import Adjustments, Grammar, Penalties, SparseRows
from servekit.kernels.draw import DrawTensors

NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.float32))
"""Of a row: no tokens, no values."""


def draw_tensors(states: Sequence[SamplingState], device: torch.device) -> DrawTensors:
    """A row each, in one transfer."""
    packed = np.array(
        [
            (own.temperature, own.top_k, own.top_p, own.min_p, state.uniform)
            for state in states
            for own in (state.sampling,)
        ],
        np.float64,
    )
    temperature, top_k, top_p, min_p, uniform = torch.from_numpy(packed.T.copy()).to(device)
    return DrawTensors(
        temperature=temperature.float(),
        top_k=top_k.int(),
        top_p=top_p.float(),
        min_p=min_p.float(),
        uniform=uniform,
    )


def adjustments_of(
    states: Sequence[SamplingState], device: torch.device
) -> tuple[Adjustments | None, dict[int, str]]:
    """None where no row asks for any; and why by row for those whose grammar gave up."""
    if not any(state.changes_logits for state in states):
        return None, {}
    additions = [state.additions for state in states]
    bias = None
    if any(one is not None for one in additions):
        bias = _sparse_rows([one or NOTHING for one in additions], device)
    grammar, gave_up = _grammar(states, device)
    return Adjustments(bias, _penalties(states, device), grammar), gave_up


def _penalties(states: Sequence[SamplingState], device: torch.device) -> Penalties | None:
    if all(state.seen is None for state in states):
        return None
    rows = [NOTHING if (seen := s.seen) is None else (seen.ids, seen.counts) for s in states]
    values = np.array(
        [
            (own.repetition_penalty, own.frequency_penalty, own.presence_penalty)
            for state in states
            for own in (state.sampling,)
        ],
        np.float32,
    )
    return Penalties(_sparse_rows(rows, device), *torch.from_numpy(values.T.copy()).to(device))


def _grammar(
    states: Sequence[SamplingState], device: torch.device
) -> tuple[Grammar | None, dict[int, str]]:
    bound = [(row, one) for row, state in enumerate(states) if (one := state.constraint)]
    if not bound:
        return None, {}
    for row, constraint in bound:
        constraint.follow(states[row].output)
    words, gave_up = masks([one for _, one in bound])
    mask = np.full(len(states), -1, np.int32)
    mask[[row for row, _ in bound]] = range(len(bound))
    found = Grammar(torch.from_numpy(words).to(device), torch.from_numpy(mask).to(device))
    return found, {bound[place][0]: why for place, why in gave_up.items()}


def _sparse_rows(rows: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device) -> SparseRows:
    starts = np.cumsum([0, *(len(ids) for ids, _ in rows)]).astype(np.int32)
    ids = np.concatenate([ids for ids, _ in rows]).astype(np.int32)
    values = np.concatenate([values for _, values in rows]).astype(np.float32)
    return SparseRows(*(torch.from_numpy(part).to(device) for part in (starts, ids, values)))
