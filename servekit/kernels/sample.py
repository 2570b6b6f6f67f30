"""One token a row from its logits: adjusted, filtered, and drawn with one uniform number.

One kernel narrows each row, a second finds the exact ends of top-k and top-p among the tokens that
are left, by bisection, and draws. One program computes a row, in an order that the row alone fixes:
its token is the same in any batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from servekit.kernels.adjust import Adjustments, adjust_reference
from servekit.kernels.draw import DrawTensors, draw
from servekit.kernels.kept import first_past, last_kept, mass_of, open_row
from servekit.kernels.language import jit, tl
from servekit.kernels.narrow import default_launch, narrow
from servekit.kernels.tuned import launch_parameters

FINE, NOT_FINITE, NOTHING_LEFT = 0, 1, 2
"""Of a row: it has a token; the model's logits are no numbers; adjustments leave no token."""


class Sampled(NamedTuple):
    """`tokens` int64 [rows], 0 where `status` int32 [rows] is not FINE."""

    tokens: torch.Tensor
    status: torch.Tensor


SampleKernel = Callable[[torch.Tensor, DrawTensors, Adjustments | None], Sampled]


def sample_reference(
    logits: torch.Tensor, params: DrawTensors, adjustments: Adjustments | None = None
) -> Sampled:
    """From logits, float32 [rows, vocab], which are left as they are; see `filtered` and `chosen`.

    The first of equally good tokens is the best one.
    """
    work = adjust_reference(logits, adjustments) if adjustments else logits
    status = row_status(logits, work)
    sound = work.masked_fill((status != FINE)[:, None], 0)
    drawn = torch.where(params.temperature > 0, draw(sound, params.lists()), sound.argmax(-1))
    return Sampled(drawn.masked_fill(status != FINE, 0), status)


def row_status(logits: torch.Tensor, adjusted: torch.Tensor) -> torch.Tensor:
    """int32 [rows]: FINE, NOT_FINITE or NOTHING_LEFT."""
    status = torch.where(adjusted.amax(-1).isfinite(), FINE, NOTHING_LEFT)
    return status.masked_fill(~logits.amax(-1).isfinite(), NOT_FINITE).int()


# fmt: off
@jit
def _draw_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, uniform_ptr,
    tokens_ptr, status_ptr, best_ptr, mass_ptr, count_ptr, near_ptr, ids_ptr, stride,
    VOCAB: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
):
    """A program a row that was narrowed and is drawn at random."""
    row = tl.program_id(0).to(tl.int64)
    if (tl.load(status_ptr + row) == 0) & (tl.load(temperature_ptr + row) > 0.0):
        line = open_row(
            row, logits_ptr, temperature_ptr, best_ptr, count_ptr, near_ptr, ids_ptr, stride,
            VOCAB, ROOM,
        )
        min_p = tl.load(min_p_ptr + row)
        mass = tl.load(mass_ptr + row).to(tl.float64)
        top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
        last = last_kept(line, top_k, top_p, mass, VOCAB, BLOCK)
        total = mass_of(line, last, min_p, logits_ptr, 0.0, -1, VOCAB, BLOCK, False)
        target = tl.load(uniform_ptr + row) * total
        token = first_past(
            line, last, min_p, logits_ptr, 0.0, -1, target, VOCAB, BLOCK, False
        )
        tl.store(tokens_ptr + row, token.to(tl.int64))
# fmt: on


def sample_triton(
    logits: torch.Tensor, params: DrawTensors, adjustments: Adjustments | None = None, **launch: int
) -> Sampled:
    """As `sample_reference`; each row of `logits` is contiguous. Nothing is read on the host."""
    rows, vocab = logits.shape
    if not rows:
        return Sampled(
            logits.new_empty(0, dtype=torch.int64), logits.new_empty(0, dtype=torch.int32)
        )
    launch = launch_parameters("sample", f"vocab={vocab}", default_launch(vocab)) | launch
    found = narrow(logits, params, adjustments, launch)
    block = launch["draw_block"]
    _draw_kernel[(rows,)](
        found.logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.uniform,
        found.tokens,
        found.status,
        found.best,
        found.mass,
        found.count,
        found.near,
        found.ids,
        found.logits.stride(0),
        VOCAB=vocab,
        ROOM=launch["room"],
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )
    return Sampled(found.tokens, found.status)
