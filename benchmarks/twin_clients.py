"""Clients of one engine process: those who come when they come, and those who never wait."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from servekit.config.schema import Config
from servekit.engine.client import EngineClient
from servekit.engine.messages import Caller, Sampling
from servekit.workload.arrival import Arrival, prompt
from servekit.workload.source import source

CLIENTS = 16
FULL = 4
"""Times as long as fewer of them, all of the clients ask."""
SEED, UP_SEED, DOWN_SEED = 1, 1001, 1002
"""Of the requests of a load, and of those before and after it."""


class Timing(NamedTuple):
    """What a client saw of one request; seconds of its own clock."""

    due: float
    sent: float
    first: float
    last: float
    tokens: int


async def one_request(
    client: EngineClient, arrival: Arrival, vocabulary: int, due: float, seed: int
) -> tuple[Timing, list[float]]:
    """The answer is as long as the workload has it, whatever the model says; with it, when each
    token came. Workloads of other seeds have prompts of the same tokens, of other lengths: they
    share no cached block.
    """
    words = Sampling(arrival.output_tokens, seed=0, temperature=0.0)
    caller, said = Caller(salt=str(seed).encode()), list[float]()
    asked = prompt(arrival, vocabulary)
    sent = time.monotonic()
    async for delta in client.submit(asked, words, caller):
        if delta.error is not None:
            raise RuntimeError(delta.error)
        said += [time.monotonic()] * len(delta.tokens)
    assert len(said) == arrival.output_tokens
    return Timing(due, sent, said[0], time.monotonic(), len(said)), said


async def engine(
    config: Config, path: Path, drive: Callable[[EngineClient], Coroutine[Any, Any, Any]]
) -> Any:
    client = EngineClient(config, path)
    client.start()
    try:
        await client.wait_ready()
        await asyncio.sleep(1.0)
        return await drive(client)
    finally:
        await client.stop()


def arrivals_of(config: Config, count: int, seed: int) -> list[Arrival]:
    return source(config.workload, max_model_len=config.model.max_model_len, seed=seed).first(count)


async def open_loop(client: EngineClient, config: Config, count: int) -> list[Timing]:
    """Requests come when they come, whoever is still being served."""
    vocabulary = config.model.shape.vocab_size
    begun = time.monotonic() + 0.5
    tasks = []
    for arrival in arrivals_of(config, count, SEED):
        await asyncio.sleep(max(0.0, begun + arrival.at - time.monotonic()))
        request = one_request(client, arrival, vocabulary, begun + arrival.at, SEED)
        tasks.append(asyncio.create_task(request))
    return [timing for timing, _ in await asyncio.gather(*tasks)]


async def closed_loop(client: EngineClient, config: Config, seconds: float, seed: int) -> float:
    """Clients who never wait, and every so many seconds one more, or one less where it is the
    other way round (DOWN_SEED); returns output tokens a second of all of them, without the first
    quarter of their time.
    """
    vocabulary, said = config.model.shape.vocab_size, list[float]()
    coming = iter(arrivals_of(config, 100_000, seed))
    begun, lasts = time.monotonic(), (CLIENTS - 1 + FULL) * seconds

    async def ask(begins: float, ends: float) -> None:
        await asyncio.sleep(begins - time.monotonic())
        while time.monotonic() < ends:
            _, at = await one_request(client, next(coming), vocabulary, 0.0, seed)
            said.extend(at)

    latest = (CLIENTS - 1) * seconds
    offs = [number * seconds for number in range(CLIENTS)]
    if seed == DOWN_SEED:
        spans, all_from = [(0.0, lasts - off) for off in offs], 0.0
    else:
        spans, all_from = [(off, lasts) for off in offs], latest
    await asyncio.gather(*(ask(begun + begins, begun + ends) for begins, ends in spans))
    settled, until = begun + all_from + FULL * seconds / 4, begun + all_from + FULL * seconds
    return sum(settled < at < until for at in said) / (until - settled)
