"""From what the scheduler says of requests to what the server is told."""

from collections.abc import Collection, Iterable

from servekit.engine.messages import Delta, TokenLogprobs
from servekit.errors import EngineError, RequestError
from servekit.scheduler.batch import Gains, Progress

Logprobs = dict[int, list[TokenLogprobs]]
"""Of each token that a request got in a step, where they were asked for."""


def step_deltas(
    gains: Gains, logprobs: Logprobs, blamed: Collection[int] = ()
) -> tuple[list[int], list[int], list[Delta]]:
    """Requests that went on by one token, as columns, and the others.

    Of those that failed, the `blamed` did so by what they ask for, the rest by our fault.
    """
    if not logprobs:
        return gains.ids, gains.tokens, deltas_of(gains.others, logprobs, blamed)
    scored = [
        Delta(id, [token], logprobs[id])
        for id, token in zip(gains.ids, gains.tokens, strict=True)
        if id in logprobs
    ]
    plain = [
        (id, token) for id, token in zip(gains.ids, gains.tokens, strict=True) if id not in logprobs
    ]
    others = deltas_of(gains.others, logprobs, blamed) + scored
    return [id for id, _ in plain], [token for _, token in plain], others


def deltas_of(
    progress: Iterable[Progress], logprobs: Logprobs, blamed: Collection[int] = ()
) -> list[Delta]:
    def code(gain: Progress) -> str | None:
        if gain.finish != "error":
            return None
        return RequestError.code if gain.request_id in blamed else EngineError.code

    return [
        Delta(
            id=gain.request_id,
            tokens=gain.tokens,
            logprobs=_aligned(logprobs.get(gain.request_id), gain.tokens),
            finish=gain.finish,
            stop_token=gain.stop_token,
            error=gain.error,
            error_code=code(gain),
            cached_tokens=gain.cached_tokens,
            preemptions=gain.preemptions,
            queue_s=gain.queue_s,
            prefill_s=gain.prefill_s,
        )
        for gain in progress
    ]


def _aligned(logprobs: list[TokenLogprobs] | None, tokens: list[int]) -> list[TokenLogprobs] | None:
    return None if logprobs is None else logprobs[: len(tokens)]
