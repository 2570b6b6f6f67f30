"""What a kernel reads of a row that was narrowed: weights, what filters keep, the token drawn.

A row is a tuple, `line`: where its logits, the distances and the ids of the tokens laid together
are, how many these are (-1 for the whole row), how many tokens to read, best logit, temperature.
"""

from servekit.kernels.draw import COLDEST
from servekit.kernels.language import jit, tl
from servekit.kernels.narrow import INFINITE

_COLDEST = tl.constexpr(COLDEST)


# fmt: off
@jit
def open_row(
    row, logits_ptr, temperature_ptr, best_ptr, count_ptr, near_ptr, ids_ptr, stride,
    VOCAB: tl.constexpr, ROOM: tl.constexpr,
):
    """What `distances` and the helpers below read of a row that was narrowed."""
    count = tl.load(count_ptr + row)
    size = tl.where(count >= 0, count, VOCAB)
    best = tl.load(best_ptr + row)
    temperature = tl.maximum(tl.load(temperature_ptr + row), _COLDEST)
    row_ptr, at = logits_ptr + row * stride, row * ROOM
    return row_ptr, near_ptr + at, ids_ptr + at, count, size, best, temperature


@jit
def distances(line, start, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Of the tokens from `start` on, among those laid together or of the whole row."""
    row_ptr, near_ptr, _, count, _, best, temperature = line
    i = start + tl.arange(0, BLOCK)
    if count >= 0:
        distance = tl.load(near_ptr + i, mask=i < count, other=float("inf"))
    else:
        x = tl.load(row_ptr + i, mask=i < VOCAB, other=float("-inf"))
        distance = tl.div_rn(best - x, temperature)
    return distance


@jit
def distance_bits(distance):
    """Integers in the order of distances."""
    return distance.to(tl.int32, bitcast=True)


@jit
def token_ids(line, i, mask):
    """Of those at places i, where `mask` is."""
    _, _, ids_ptr, count, _, _, _ = line
    together = tl.load(ids_ptr + i, mask=mask & (i < count), other=0)
    return tl.where(count >= 0, together, i)


@jit
def weights(
    line, start, last, min_p, draft_ptr, scale, banned,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, DRAFT: tl.constexpr,
):
    """exp(-distance), 0 where the distance's bits are above `last`, the weight is below `min_p`, or
    the token is `banned` (-1: none). With DRAFT less `scale` times the draft's probability, but not
    below 0.
    """
    distance = distances(line, start, VOCAB, BLOCK)
    weight = tl.exp(-distance)
    i = start + tl.arange(0, BLOCK)
    inside = i < line[4]
    kept = (distance_bits(distance) <= last) & (weight >= min_p) & inside
    if DRAFT:
        wanted = kept & (scale * weight > 0.0)  # where nothing is taken away nothing may be there
        draft = tl.load(draft_ptr + token_ids(line, i, wanted), mask=wanted, other=0.0)
        weight = tl.maximum(weight - scale * draft, 0.0)
    elif banned >= 0:
        kept &= token_ids(line, i, kept) != banned
    return tl.where(kept, weight, 0.0)


@jit
def mass_of(
    line, last, min_p, draft_ptr, scale, banned,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, DRAFT: tl.constexpr,
):
    """The weights' sum: of float32 within a block, of float64 between blocks."""
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, line[4], BLOCK):
        weight = weights(line, start, last, min_p, draft_ptr, scale, banned, VOCAB, BLOCK, DRAFT)
        total += tl.sum(weight, 0).to(tl.float64)
    return total


@jit
def last_kept(line, top_k, top_p, mass, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The bits of the longest distance that top-k and top-p keep; `mass` is for top-p alone."""
    last = tl.full((), INFINITE, tl.int32)
    if (top_k > 0) & (top_k < VOCAB):
        low, high = tl.full((), -1, tl.int32), tl.full((), INFINITE, tl.int32)
        while high - low > 1:  # fewer than k are within low
            middle = low + (high - low) // 2
            within = tl.full((), 0, tl.int32)
            for start in range(0, line[4], BLOCK):
                bits = distance_bits(distances(line, start, VOCAB, BLOCK))
                within += tl.sum((bits <= middle).to(tl.int32), 0)
            if within >= top_k:
                high = middle
            else:
                low = middle
        last = high
        mass = mass_of(line, last, 0.0, line[0], 0.0, -1, VOCAB, BLOCK, False)
    if top_p < 1.0:
        low, high = tl.full((), 0, tl.int32), last + 1
        while high - low > 1:  # those nearer than low have less than top_p of the mass
            middle = low + (high - low) // 2
            nearer = mass_of(line, middle - 1, 0.0, line[0], 0.0, -1, VOCAB, BLOCK, False)
            if nearer < top_p * mass:
                low = middle
            else:
                high = middle
        last = low
    return last


@jit
def first_past(
    line, last, min_p, draft_ptr, scale, banned, target,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, DRAFT: tl.constexpr,
):
    """The first token whose running weight is above `target`, which is below the whole."""
    running = tl.full((), 0.0, tl.float64)
    before = running
    start = tl.full((), 0, tl.int32)
    while (running <= target) & (start < line[4]):
        weight = weights(line, start, last, min_p, draft_ptr, scale, banned, VOCAB, BLOCK, DRAFT)
        before = running
        running += tl.sum(weight, 0).to(tl.float64)
        start += BLOCK
    start -= BLOCK
    weight = weights(line, start, last, min_p, draft_ptr, scale, banned, VOCAB, BLOCK, DRAFT)
    i = start + tl.arange(0, BLOCK)
    past = before + tl.cumsum(weight.to(tl.float64), 0) > target
    first = tl.min(tl.where(past, i, line[4]), 0)
    # the block's sum in float32 may have been a rounding more than it is
    final = tl.max(tl.where(weight > 0.0, i, 0), 0)
    place = tl.where(first < line[4], first, final)
    return token_ids(line, place, place >= 0)
# fmt: on
