"""What a request may ask for: each limit once, each refusal with the field's name in `param`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from servekit.engine.messages import Sampling
from servekit.errors import ContextTooLong, RequestError
from servekit.server.wire import ChatRequest, CompletionRequest, SamplingFields

T = TypeVar("T")

MAX_CHOICES = 16
MAX_PROMPTS = 128
MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKENS = 128
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_TOP_K = 2**31 - 1
SEEDS = 2**63
COMPLETION_TOKENS = 16
"""What the OpenAI API generates on /v1/completions when nothing is said."""

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
    "n": (1, MAX_CHOICES),
    "max_tokens": (1, 2**31),
    "max_completion_tokens": (1, 2**31),
    "min_tokens": (0, 2**31),
    "top_k": (-1, MAX_TOP_K),
    "seed": (-SEEDS, SEEDS - 1),
    "priority": (-(2**31), 2**31 - 1),
}
"""Both ends are allowed, but for top_p, which must be above zero. 0 and -1 switch top_k off."""

DEFAULT_SAMPLING: dict[str, float | int | str] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "origin": "the OpenAI API; generation_config.json of the model is not read",
}


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that prompt and output of one request may fill."""

    max_model_len: int
    max_servable_tokens: int

    @property
    def tokens(self) -> int:
        return min(self.max_model_len, self.max_servable_tokens)

    def refusal(self, prompt_tokens: int, max_tokens: int, param: str) -> ContextTooLong:
        return ContextTooLong(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            max_model_len=self.max_model_len,
            max_servable_tokens=self.max_servable_tokens,
            param=param,
        )

    def check_text(self, characters: int, longest_token: int | None, param: str) -> None:
        """Raises ContextTooLong for text of more tokens than there is room for, whichever it has;
        a token stands for `longest_token` characters at most."""
        if longest_token is None or characters <= self.tokens * longest_token:
            return
        error = self.refusal(-(-characters // longest_token), 1, param)
        error.message = (
            f"{characters} characters are at least {error.details['prompt_tokens']} tokens, but "
            f"this deployment serves at most {self.tokens} a request; shorten the prompt"
        )
        raise error

    def check_ids(self, tokens: int) -> None:
        """Raises ContextTooLong for a prompt of so many token ids, before they are looked at."""
        if tokens >= self.tokens:
            raise self.refusal(tokens, 1, "prompt")

    def max_tokens(self, prompt_tokens: int, asked: int | None, default: int, param: str) -> int:
        """What is asked for if it fits; with nothing asked, `default` or the room that is left."""
        left = self.tokens - prompt_tokens
        if left < (asked or 1):
            raise self.refusal(prompt_tokens, asked or 1, param)
        return asked or min(default, left)


def check_fields(body: ChatRequest | CompletionRequest) -> None:
    """Everything that can be said before the prompt is tokenised."""
    for name, (low, high) in RANGES.items():
        value = getattr(body, name, None)
        if value is not None and not low <= value <= high:
            raise RequestError(f"{name} is {value}, allowed is {low} to {high}", param=name)
    if body.top_p == 0:
        raise RequestError("top_p is 0, it must be above 0; temperature 0 is greedy", param="top_p")
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options is for streams; set stream or leave it out", param="stream_options"
        )
    options = body.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError(
            "continuous_usage_stats needs include_usage: true",
            param="/stream_options/continuous_usage_stats",
        )
    _check_stops(body)
    if isinstance(body, ChatRequest):
        _check_chat(body)
    else:
        _check_completion(body)


def _check_stops(body: SamplingFields) -> None:
    stops = stop_strings(body)
    if len(stops) > MAX_STOPS:
        raise RequestError(f"{len(stops)} stop strings, at most {MAX_STOPS}", param="stop")
    if "" in stops:
        raise RequestError("a stop string is empty; it would stop everything", param="stop")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise RequestError(
            f"a stop string is longer than {MAX_STOP_CHARACTERS} characters", param="stop"
        )


def _check_chat(body: ChatRequest) -> None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {top}, allowed is 0 to {MAX_TOP_LOGPROBS}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    both = body.max_tokens, body.max_completion_tokens
    if None not in both and both[0] != both[1]:
        raise RequestError(
            f"max_tokens ({both[0]}) and max_completion_tokens ({both[1]}) are one thing under two "
            "names and differ; send the second alone",
            param="max_tokens",
        )


def _check_completion(body: CompletionRequest) -> None:
    top = body.logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"logprobs is {top}, allowed is 0 to {MAX_TOP_LOGPROBS}", param="logprobs"
        )
    if top is not None and body.echo:
        raise RequestError(
            "echo with logprobs would need logprobs of the prompt, which this release does not "
            "compute; leave one of them out",
            param="echo",
        )


def stop_strings(body: SamplingFields) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"token id {token} is not in the vocabulary of {vocab_size}", param=param
            )


def check_token_words(body: ChatRequest | CompletionRequest, vocab_size: int) -> None:
    """Raises RequestError for a bias or a stop token that is out of bounds."""
    bias = body.logit_bias or {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"{len(bias)} entries in logit_bias, at most {MAX_LOGIT_BIAS}", param="logit_bias"
        )
    check_token_ids(list(bias), vocab_size, "logit_bias")
    if any(not -100 <= value <= 100 for value in bias.values()):
        raise RequestError("a value of logit_bias is outside -100 to 100", param="logit_bias")
    stop_ids = body.stop_token_ids or []
    if len(stop_ids) > MAX_STOP_TOKENS:
        raise RequestError(
            f"{len(stop_ids)} stop_token_ids, at most {MAX_STOP_TOKENS}", param="stop_token_ids"
        )
    check_token_ids(stop_ids, vocab_size, "stop_token_ids")


def sampling(
    body: ChatRequest | CompletionRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    vocab_size: int,
    eos_ids: frozenset[int],
    grammar: str | None = None,
) -> Sampling:
    """The engine's words for what `body` asks; an absent seed is drawn here."""
    check_token_words(body, vocab_size)
    stop_ids = body.stop_token_ids or []
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens ({min_tokens}) is more than the {max_tokens} that may be generated",
            param="min_tokens",
        )
    ends = set(stop_ids) if body.ignore_eos else {*stop_ids, *eos_ids}
    return Sampling(
        max_tokens=max_tokens,
        seed=fresh_seed() if body.seed is None else body.seed % SEEDS,
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=max(0, _or(body.top_k, 0)),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=body.logit_bias or {},
        min_tokens=min_tokens,
        stop_token_ids=sorted(ends),
        logprobs=logprobs,
        grammar=grammar,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "big") % SEEDS
