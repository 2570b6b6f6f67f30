"""What server and engine process say to each other: msgspec structs over two ZeroMQ sockets."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from servekit.model.vocabulary import Vocabulary

FinishReason = Literal["stop", "length", "abort", "error"]
SloClass = Literal["interactive", "batch"]


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are drawn for one request; limits are checked by the server.

    `logprobs` is how many alternatives to report beside the chosen token, None for no report; they
    are of the model's own distribution, before temperature, penalties, bias and grammar.
    `stop_token_ids` has the end-of-sequence ids too, unless they are to be ignored. `grammar` is
    one of `model.grammar`, tried before; where it may end, end-of-sequence ids are allowed.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    logprobs: int | None = None
    grammar: str | None = None


class Caller(msgspec.Struct, frozen=True):
    """Who asks, and how urgent it is; requests share cached blocks only where `salt` is the same.

    Lower `priority` goes first, where scheduler.order asks for it. `key` is the name of the key.
    """

    tenant: str = ""
    salt: bytes = b""
    priority: int = 0
    slo_class: SloClass = "interactive"
    key: str = ""


class Submit(msgspec.Struct, tag="submit", frozen=True):
    id: int
    prompt: list[int]
    sampling: Sampling
    caller: Caller = Caller()


class Pin(msgspec.Struct, tag="pin", frozen=True):
    """Keep what is cached of these tokens longer than anything else."""

    prompt: list[int]


class Abort(msgspec.Struct, tag="abort", frozen=True):
    ids: list[int]


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Finish nothing more and exit."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms; `top` is (token id, logprob), best first."""

    logprob: float
    top: list[tuple[int, float]]


class Event(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a request beside its tokens; times are of the monotonic clock, in seconds.

    seated: it got a seat at `end`, and `tokens` of its prompt were found cached; preempted: it lost
    it at `end`; both have as `start` when it came. chunk: the step from `start` to `end` computed
    `tokens` of its prompt, or, after a preemption, of that and its answer.
    """

    id: int
    kind: Literal["seated", "chunk", "preempted"]
    start: float
    end: float
    tokens: int


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What a request gained in one step; the one with `finish` is its last.

    The first says that the request is let in, and has no tokens, or why it is not, and then
    `retry_after_s` may say when it is worth asking again. Seconds in the queue, and from there to
    the first token, come with that token and at the end. `events` are older than the tokens.
    """

    id: int
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    error_code: str | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    retry_after_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    events: list[Event] = []


class Stats(msgspec.Struct, frozen=True):
    """Scheduler and cache after a step; counts since start where the name ends in `_total`.

    `prefix_miss_tokens_total` is by reason, `refused_total` by the error's code. `predicted_ttft_s`
    is for a typical request that came now; None: nothing is known yet. `slots_unfilled` are places
    for a token in blocks in use that hold none yet. Cached blocks can be found, those that are held
    too; `blocks_remembering` are the free ones among them.
    """

    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_remembering: int
    block_size: int
    batch_rows: int
    batch_tokens: int
    step_s: float
    steps_total: int
    preemptions_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    preempted_tokens_total: int
    swaps_total: int
    takeovers_total: int
    merged_blocks_total: int
    prefix_miss_tokens_total: dict[str, int]
    refused_total: dict[str, int]
    predicted_ttft_s: float | None
    slots_unfilled: int
    step_budget_tokens: int
    kernel_compiles_total: int = 0
    """Since it was ready."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step: `build_s` it took to decide on, `seconds` to run; the latter may overlap with what
    the next one took to decide on."""

    rows: int
    prefill_tokens: int
    decode_tokens: int
    seconds: float
    build_s: float


class Deltas(msgspec.Struct, tag="deltas", frozen=True):
    """What a step gave: requests that went on by one token, as columns, and the others.

    Without a `step` it is what was said between two. `events` are older than the deltas.
    """

    ids: list[int]
    tokens: list[int]
    others: list[Delta]
    stats: Stats
    step: Step | None = None
    events: list[Event] = []

    def all(self) -> Iterator[Delta]:
        for id, token in zip(self.ids, self.tokens, strict=True):
            yield Delta(id, [token])
        yield from self.others


Phase = Literal["start", "load", "kernels", "trial", "capture", "warmup"]


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """`done` of `total` in the unit that the phase counts; total 0 means unknown."""

    phase: Phase
    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Planned beside measured, for the log, `/v1/servekit/plan` and metrics.

    Blocks and bytes of the cache are those that requests may own, without the null block.
    """

    max_model_len: int
    max_servable_tokens: int
    """of a request that has the cache to itself"""
    capacity_tokens: int
    num_blocks: int
    weights_bytes: int
    kv_bytes: int
    load_s: float
    warmup_s: float
    slowest_step_s: float = 0.0
    """of the warm-up, which runs one at all limits"""
    graphs: int = 0
    """captured decode steps"""
    graphs_bytes: int = 0


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """The loop turns, and has nothing else to say; `step_s`: how long the step under way takes."""

    step_s: float


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The engine cannot go on; it exits after saying so."""

    error: str
    code: str


ToEngine = Submit | Pin | Vocabulary | Abort | Stop
FromEngine = Loading | Ready | Deltas | Beat | Failed
