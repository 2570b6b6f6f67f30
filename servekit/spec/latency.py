"""Seconds of one engine step, from bytes, operations and measured efficiencies.

Weights are read once a step and multiplied with every token; each running request's keys and values
are read once; prompts attend to themselves; ranks exchange activations; the host prepares it all.
Matrix products take the smooth maximum of reading and computing, `(a^3 + b^3)^(1/3)`: profiles show
them slower than both near the ridge of the roofline. `roofline` is the same at efficiency 1, with
everything overlapped and no host: no engine is faster.

Batches are not padded to the sizes of captured graphs: below 256 the sizes are 8 apart, which is
within the band.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from servekit.config.schema import Config
from servekit.spec.collectives import all_reduce_s, send_s
from servekit.spec.drafting import draft_stage, tokens_per_step
from servekit.spec.efficiency import at, table
from servekit.spec.stages import Attention, Products, Stage, stages

SHARPNESS = 3.0
"""Of the smooth maximum; fits the dip near the ridge in published kernel tables."""

Prefill = Sequence[tuple[float, float]]
"""Of each prompt chunk in the step: new tokens, and tokens that are already there."""

TERMS = ("linear", "attention", "prefill_attention", "communication", "draft", "host")
"""Parts that a modelled step is the sum of."""

EXPERTS_BAND = 0.30
"""What the model errs against published serving measurements of models with experts, relative; of
dense ones each table of efficiencies says it."""
BORROWED = 1.5
"""How much wider the band is where the table of efficiencies is of another card."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """How long a step of one model copy takes; plain numbers, asked a thousand times for a plan.

    With pipeline stages a step is one token's way through all of them; `pipeline` batches are on
    their way at once, so in all that many steps end in that time.
    """

    stages: tuple[Stage, ...]
    draft: Stage | None
    guesses: int
    """tokens that are guessed before each step, checked in it with the one after"""
    host_s: float
    is_bound: bool
    tokens_per_step: float
    """of each running request, on average"""
    pipeline: int
    band: float
    """half-width of the interval around `seconds`, relative"""
    standing: Literal["modelled", "guess", "exact"]

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        """One step in which `decodes` requests, with `context` tokens each on average, go on by a
        token and prompts are taken in. All may be fractions; an empty step takes no time.
        """
        queries = 1 + self.guesses
        tokens = decodes * queries + sum(new for new, _ in prefill)
        if tokens <= 0:
            return 0.0
        rows = decodes * queries + len(prefill)
        if self.is_bound:
            return self._bound_s(tokens, rows, decodes, context, prefill)
        prompts = sum(_prompts(stage, prefill) for stage in self.stages)
        linear = self.of_tokens(tokens) + self.of_rows(rows)
        return self.host_s + linear + self.of_decodes(decodes, context) + prompts

    def of_tokens(self, tokens: float) -> float:
        """Seconds of a modelled step that go by how many tokens it has, of whatever kind."""
        total = 0.0
        for stage in self.stages:
            total += _products(stage, tokens, 0.0)[2] + _exchange(stage, tokens)
        return total

    def of_rows(self, rows: float) -> float:
        """Seconds that go by how many tokens logits are wanted of."""
        return sum(_products(stage, 0.0, rows)[2] for stage in self.stages)

    def of_decodes(self, decodes: float, context: float) -> float:
        """Seconds of attention to what decodes see, and of guessing."""
        total = self._draft_s(decodes, context)
        for stage in self.stages:
            total += _decode(stage, decodes, context, 1 + self.guesses)[2]
        return total

    @property
    def windows(self) -> tuple[float, ...]:
        """Tokens that layers see, each once; infinite where they see everything."""
        return tuple({layers.window: None for s in self.stages for layers in s.attention})

    def of_pairs(self, window: float, seen: float) -> float:
        """Seconds of attention to prompts in the layers of this window, for a chunk of so many
        `pairs`.
        """
        total = 0.0
        for stage in self.stages:
            for layers in stage.attention:
                if layers.window == window:
                    total += _prompt(layers, seen)
        return total

    def _bound_s(
        self, tokens: float, rows: float, decodes: float, context: float, prefill: Prefill
    ) -> float:
        total = self.host_s
        for stage in self.stages:
            read, compute, _ = _products(stage, tokens, rows)
            kv, scores, _ = _decode(stage, decodes, context, 1 + self.guesses)
            total += max(read + kv, compute + scores + _prompts(stage, prefill))
        return total + self._draft_s(decodes, context)

    def parts(self, decodes: float, context: float, prefill: Prefill = ()) -> dict[str, float]:
        """The same by name, seconds. A modelled step is the sum of `TERMS`; `linear` is the smooth
        maximum of `weights` (reading) and `compute`; `kv` and `scores` are what `attention` of the
        decodes is made of. A bound is the larger of `weights + kv` and `compute + scores +
        prefill_attention`, of each stage, and the draft's own.
        """
        queries = 1 + self.guesses
        tokens = decodes * queries + sum(new for new, _ in prefill)
        names = ("weights", "compute", "linear", "kv", "scores", "attention")
        sums = dict.fromkeys((*names, "prefill_attention", "communication"), 0.0)
        for stage in self.stages if tokens > 0 else ():
            products = _products(stage, tokens, decodes * queries + len(prefill))
            attended = _decode(stage, decodes, context, queries)
            for name, seconds in zip(names, (*products, *attended), strict=True):
                sums[name] += seconds
            sums["prefill_attention"] += _prompts(stage, prefill)
            sums["communication"] += _exchange(stage, tokens)
        sums["draft"] = self._draft_s(decodes, context)
        sums["host"] = self.host_s if tokens > 0 else 0.0
        return sums

    def _draft_s(self, decodes: float, context: float) -> float:
        """All guesses, one after the other."""
        if self.draft is None or decodes <= 0:
            return 0.0
        read, compute, both = _products(self.draft, decodes, decodes)
        kv, scores, attended = _decode(self.draft, decodes, context, 1)
        each = max(read + kv, compute + scores) if self.is_bound else both + attended
        return self.guesses * each


def _products(stage: Stage, tokens: float, rows: float) -> tuple[float, float, float]:
    """Reading, computing, and both together; `rows` are tokens that logits are wanted of."""
    read = compute = both = 0.0
    for products in stage.products:
        m = rows if products.sampled else tokens
        if m > 0:
            one_read, one_compute = _product(products, m)
            read += one_read
            compute += one_compute
            both += _smooth(one_read, one_compute, products.floor_s)
    return read, compute, both


def _product(products: Products, tokens: float) -> tuple[float, float]:
    """Of experts a step reads those that a token is sent to: with E of them and k a token, chosen
    evenly, `E (1 - (1 - k/E)^tokens)`; each then sees `tokens k / E` tokens.
    """
    m = max(1.0, tokens * products.group)
    read = products.read_s
    if products.hit < 1.0:
        read *= 1.0 - (1.0 - products.hit) ** m
        m = max(1.0, m * products.hit)
    read /= at(products.memory, m)
    return read, tokens * products.token_s / at(products.compute, m)


def _smooth(first: float, second: float, floor: float) -> float:
    """With SHARPNESS 3 written out: a plan asks this some thousand times, and powers are slow."""
    summed = first * first * first + second * second * second + floor * floor * floor
    return float(summed ** (1 / SHARPNESS))


def _decode(
    stage: Stage, decodes: float, context: float, queries: int
) -> tuple[float, float, float]:
    """Reading keys, values and states; computing scores; and both together."""
    kv = scores = both = 0.0
    if decodes <= 0:
        return kv, scores, both
    for layers in stage.attention:
        seen = min(context, layers.window)
        size = decodes * seen * layers.layer_bytes
        if size > 0:
            read = size * layers.byte_s / at(layers.decode, size)
            compute = decodes * queries * seen * layers.decode_pair_s
            kv += layers.layers * read
            scores += layers.layers * compute
            both += layers.layers * _smooth(read, compute, layers.floor_s)
    states = decodes * stage.state_s
    return kv + states, scores, both + states


def _prompts(stage: Stage, prefill: Prefill) -> float:
    """Causal attention of each chunk to itself and to what is there."""
    return sum(
        _prompt(layers, pairs(*chunk, layers.window))
        for layers in stage.attention
        for chunk in prefill
    )


def _prompt(layers: Attention, seen: float) -> float:
    if seen <= 0:
        return 0.0
    # the whole prompt with as many pairs says how well the kernel is filled
    length = max(1.0, (2 * seen) ** 0.5)
    return layers.layers * seen * layers.prefill_pair_s / at(layers.prefill, length)


def pairs(new: float, there: float, window: float) -> float:
    """Of queries and keys that each sees, in a chunk of `new` tokens with `there` before it."""
    if there + new <= window:
        return new * (there + new / 2)
    growing = max(0.0, window - there)
    return growing * (there + growing / 2) + (new - growing) * window


def _exchange(stage: Stage, tokens: float) -> float:
    """All-reduces of activations, experts' dispatch and combine, and the next stage."""
    size = tokens * stage.activation_bytes
    total = stage.reduces * all_reduce_s(stage.links, size)
    if stage.exchanges:
        total += stage.exchanges * send_s(stage.links, size * stage.exchange_share)
    return total + stage.hops * send_s(stage.links, size)


def step_model(config: Config) -> StepModel:
    """With the efficiencies of `hardware.efficiency`. Raises ConfigError if there is no such."""
    efficiency = table(config.hardware.efficiency)
    own = config.hardware.name in efficiency.cards
    shape = config.model.shape
    band = max(efficiency.band, EXPERTS_BAND) if shape.moe else efficiency.band
    if not own and config.hardware.kind != "cpu":
        band = round(band * BORROWED, 3)
    return StepModel(
        stages=stages(config, efficiency),
        draft=draft_stage(config, efficiency),
        guesses=config.speculative.tokens,
        host_s=efficiency.host_s + shape.layers * efficiency.host_layer_s,
        is_bound=False,
        tokens_per_step=tokens_per_step(config.speculative),
        pipeline=config.parallelism.pipeline,
        band=band,
        standing="modelled" if own else "guess",
    )


def roofline(config: Config) -> StepModel:
    """Bytes over bandwidth and operations over peak rate, whichever takes longer; nothing else."""
    return StepModel(
        stages=stages(config, None),
        draft=draft_stage(config, None),
        guesses=config.speculative.tokens,
        host_s=0.0,
        is_bound=True,
        tokens_per_step=tokens_per_step(config.speculative),
        pipeline=config.parallelism.pipeline,
        band=0.0,
        standing="exact",
    )
