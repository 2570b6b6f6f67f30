"""What goes over the wire, as msgspec structs: the OpenAI API and the sampling fields beyond it.

A null means the same as an absent field. Limits of the values are in `limits`; what is unknown or
not built is said in `parse`.
"""

from typing import Any, Literal

import msgspec

from servekit.server.forms import ResponseFormat, TextOptions

FinishReason = Literal["stop", "length"]
SloClass = Literal["interactive", "batch"]
ListOrOne = list[str] | str


class StreamOptions(msgspec.Struct, frozen=True):
    """`continuous_usage_stats` puts what was used so far on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chat and completions share.

    `timings` asks for Timings beside the usage. The last two are for the scheduler: a lower
    `priority` goes first where scheduler.order is priority, and nobody waits for what is of class
    batch.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: ListOrOne | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    timings: bool | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    choice: list[str] | None = None
    priority: int | None = None
    slo_class: SloClass | None = None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """`prompt` is a string, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """`messages` go to the chat template with every key that they have.

    `continue_final_message`: the last of them is the beginning of the answer, which goes on.
    """

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """`input` is a string, or items with a role and content."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


class TokenizeResponse(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(msgspec.Struct, frozen=True):
    """Of the answer that ended last, in milliseconds: until it had a seat, from there to its first
    token, from that to its last, and all since the request came. Of all answers: prompt tokens that
    were cached, and how often one lost its seat. Null: it had none yet."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float
    total_ms: float
    cached_tokens: int
    preemptions: int


class TopLogprob(msgspec.Struct, frozen=True):
    """`bytes` are exact where `token`, as text, cannot be: a token may hold part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Lists of equal length; `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whole in an answer, a piece in a stream: the API gives both one shape."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """`roles` are those whose text the chat template puts into the prompt, none without one;
    `default_sampling` is what holds where a request says nothing, and where that comes from."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "servekit"
    root: str
    max_model_len: int
    roles: list[str]
    default_sampling: dict[str, float | int | str]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ModelCard]
