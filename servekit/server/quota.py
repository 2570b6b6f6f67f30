"""What one key may use: answers at once, requests and tokens a minute.

A minute's worth may be used at once; then it comes back little by little. Tokens of answers are
counted as they come and may bring the balance below zero: an answer that has begun is never cut for
it, the next one waits longer. Limits hold for each server process by itself.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from servekit.errors import (
    ConcurrencyExceeded,
    RequestError,
    RequestRateExceeded,
    TokenRateExceeded,
)
from servekit.server.keys import Key

MINUTE_S = 60.0


@dataclass(slots=True)
class Bucket:
    """Gains its size in a minute; full until it is used."""

    used: float = 0.0
    """What is gone of it; more than its size is a debt."""
    at: float = 0.0

    def wait_s(self, amount: float, size: int | None, now: float) -> float:
        """Seconds until there is `amount`, 0 if there is; without a `size`, always."""
        if size is None:
            return 0.0
        self.used = max(0.0, self.used - (now - self.at) * size / MINUTE_S)
        self.at = now
        return max(0.0, (self.used + amount - size) * MINUTE_S / size)


@dataclass(slots=True)
class Quota:
    """What a key uses now; its limits are those of the moment."""

    clock: Callable[[], float] = time.monotonic
    running: int = 0
    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)

    def enter(self, key: Key, answers: int, prompt_tokens: int) -> None:
        """Counts a request in. Raises an Overloaded that says what is exceeded and when to return,
        or RequestError for what the limits never let in."""
        now = self.clock()
        _check_possible(key, answers, prompt_tokens)
        if key.max_concurrent is not None and self.running + answers > key.max_concurrent:
            raise ConcurrencyExceeded(
                f"key {key.name} has {self.running} answers running or waiting, and {answers} more "
                f"would exceed its {key.max_concurrent}; wait for one to end",
                retry_after_s=1.0,
            )
        if wait_s := self.requests.wait_s(1, key.requests_per_minute, now):
            raise RequestRateExceeded(
                f"key {key.name} may send {key.requests_per_minute} requests a minute; "
                f"wait {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        if wait_s := self.tokens.wait_s(prompt_tokens, key.tokens_per_minute, now):
            raise TokenRateExceeded(
                f"key {key.name} may use {key.tokens_per_minute} tokens a minute, prompts and "
                f"answers, and has not the {prompt_tokens} of this prompt left; "
                f"wait {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        self.running += answers
        self.requests.used += 1
        self.tokens.used += prompt_tokens


def _check_possible(key: Key, answers: int, prompt_tokens: int) -> None:
    if key.max_concurrent is not None and answers > key.max_concurrent:
        raise RequestError(
            f"{answers} answers in one request, and key {key.name} may have {key.max_concurrent} "
            "at once; send fewer prompts or a smaller n",
            param="n",
        )
    if key.tokens_per_minute is not None and prompt_tokens > key.tokens_per_minute:
        raise RequestError(
            f"{prompt_tokens} prompt tokens in one request, and key {key.name} may use "
            f"{key.tokens_per_minute} a minute; send less",
            param="prompt",
        )
