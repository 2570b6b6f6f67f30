"""What is done to logits before a token is drawn: bias, penalties, grammar."""

from dataclasses import dataclass

import torch

from servekit.kernels.language import jit, tl, triton

PROGRAMS = 4
"""Of a row with a list of tokens."""


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Row r has `ids` and `values` from `starts[r]` to `starts[r + 1]`, each id once.

    int32 [rows + 1], int32 [room], float32 [room]; what is after the last row's end means nothing.
    """

    starts: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """`seen` has the distinct tokens of prompt and output, and how often each is in the output;
    the rest are float32 [rows]: 1, 0 and 0 for none."""

    seen: SparseRows
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


@dataclass(frozen=True, slots=True)
class Grammar:
    """`words` int32 [masks, ceil(vocab / 32)], lowest bit first: 1 for a token that may come next.

    `mask` int32 [rows] is each row's own, -1 for a row without grammar. What is beyond the words
    may not come.
    """

    words: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Adjustments:
    """None where no row of the step asks for it. `bias` may be -inf, which forbids a token."""

    bias: SparseRows | None = None
    penalties: Penalties | None = None
    grammar: Grammar | None = None

    def __bool__(self) -> bool:
        return not (self.bias is None and self.penalties is None and self.grammar is None)


def adjust_reference(logits: torch.Tensor, what: Adjustments) -> torch.Tensor:
    """Of logits, float32 [rows, vocab], a copy: bias added, then penalties, then grammar."""
    work = logits.clone()
    if what.bias is not None:
        rows, ids, values = _flat(what.bias)
        work[rows, ids] += values
    if (penalties := what.penalties) is not None:
        rows, ids, counts = _flat(penalties.seen)
        by_row = (penalties.repetition[rows], penalties.frequency[rows], penalties.presence[rows])
        work[rows, ids] = penalised(work[rows, ids], counts, *by_row)
    if (grammar := what.grammar) is not None:
        bound = (grammar.mask >= 0).nonzero()[:, 0]
        places = torch.arange(32, dtype=torch.int32, device=logits.device)
        words = grammar.words[grammar.mask[bound].long()]
        may = ((words[:, :, None] >> places) & 1).flatten(1).bool()[:, : work.shape[1]]
        forbidden = torch.ones(len(bound), work.shape[1], dtype=torch.bool, device=logits.device)
        forbidden[:, : may.shape[1]] = ~may
        work[bound] = work[bound].masked_fill(forbidden, -torch.inf)
    return work


def penalised(
    logits: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Logits of tokens that were seen, lowered; all [tokens].

    Repetition (Keskar et al. 2019, CTRL) counts prompt and output: a positive logit is divided by
    the penalty, another is multiplied. Then frequency and presence (OpenAI) count the output:
    logit -= frequency * count + presence * (count > 0).
    """
    value = torch.where(logits > 0, logits / repetition, logits * repetition)
    return value - frequency * counts - presence * (counts > 0)


def _flat(sparse: SparseRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row, id and value of each entry."""
    sizes = sparse.starts.diff()
    rows = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
    return rows, sparse.ids[: len(rows)].long(), sparse.values[: len(rows)]


# fmt: off
@jit
def _mask_kernel(
    logits_ptr, out_ptr, words_ptr, mask_ptr, stride, words_stride, WORDS: tl.constexpr,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):
    """A copy without what the row's grammar forbids."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < VOCAB
    x = tl.load(logits_ptr + row * stride + i, mask=inside, other=0.0)
    if MASKED:
        mask = tl.load(mask_ptr + row)
        if mask >= 0:
            word = i // 32
            here = words_ptr + mask.to(tl.int64) * words_stride + word
            bits = tl.load(here, mask=inside & (word < WORDS), other=0)
            x = tl.where(((bits >> (i % 32)) & 1) != 0, x, float("-inf"))
    tl.store(out_ptr + row * VOCAB + i, x, mask=inside)


@jit
def _sparse_kernel(
    logits_ptr, starts_ptr, ids_ptr, values_ptr, repetition_ptr, frequency_ptr, presence_ptr,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PENALISE: tl.constexpr,
):
    """In place; the programs of a row share its list. An id stands once, so no two meet."""
    row = tl.program_id(0).to(tl.int64)
    end = tl.load(starts_ptr + row + 1)
    first = tl.load(starts_ptr + row) + tl.program_id(1) * BLOCK
    for start in range(first, end, tl.num_programs(1) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < end
        here = logits_ptr + row * VOCAB + tl.load(ids_ptr + i, mask=inside, other=0)
        x = tl.load(here, mask=inside, other=0.0)
        value = tl.load(values_ptr + i, mask=inside, other=0.0)
        if PENALISE:
            repetition = tl.load(repetition_ptr + row)
            x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
            x -= tl.load(frequency_ptr + row) * value
            x -= tl.where(value > 0, tl.load(presence_ptr + row), 0.0)
        else:
            x += value
        tl.store(here, x, mask=inside)
# fmt: on


def adjust_triton(logits: torch.Tensor, what: Adjustments) -> torch.Tensor:
    """As `adjust_reference`; rows of `logits` are contiguous.

    The mask goes with the copy, before what is added: nothing finite brings -inf back.
    """
    rows, vocab = logits.shape
    out = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    if not rows:
        return out
    grammar = what.grammar
    block = min(4096, triton.next_power_of_2(vocab))
    _mask_kernel[(rows, triton.cdiv(vocab, block))](
        logits,
        out,
        logits if grammar is None else grammar.words,
        logits if grammar is None else grammar.mask,
        logits.stride(0),
        0 if grammar is None else grammar.words.stride(0),
        WORDS=0 if grammar is None else grammar.words.shape[1],
        VOCAB=vocab,
        BLOCK=block,
        MASKED=grammar is not None,
        num_warps=min(8, max(1, block // 256)),
    )
    if what.bias is not None:
        _add(out, what.bias, None)
    if what.penalties is not None:
        _add(out, what.penalties.seen, what.penalties)
    return out


def _add(out: torch.Tensor, sparse: SparseRows, penalties: Penalties | None) -> None:
    rows, vocab = out.shape
    _sparse_kernel[(rows, PROGRAMS)](
        out,
        sparse.starts,
        sparse.ids,
        sparse.values,
        sparse.values if penalties is None else penalties.repetition,
        sparse.values if penalties is None else penalties.frequency,
        sparse.values if penalties is None else penalties.presence,
        VOCAB=vocab,
        BLOCK=256,
        PENALISE=penalties is not None,
        num_warps=2,
    )
