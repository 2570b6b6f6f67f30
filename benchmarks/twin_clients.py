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

CLIENTS = (1, 2, 3, 4, 6, 8, 12, 16)
SEED, CALIBRATION_SEED = 1, 1001


class Timing(NamedTuple):
    """What a client saw of one request; seconds of its own clock."""

    due: float
    sent: float
    first: float
    last: float
    tokens: int


async def one_request(
    client: EngineClient, arrival: Arrival, vocabulary: int, due: float, said: list[float]
) -> Timing:
    """The answer is as long as the workload has it, whatever the model says; when each token came
    is added to `said`.
    """
    words = Sampling(arrival.output_tokens, seed=0, temperature=0.0)
    tokens, first = 0, 0.0
    asked = prompt(arrival, vocabulary)
    sent = time.monotonic()
    async for delta in client.submit(asked, words, Caller()):
        if delta.error is not None:
            raise RuntimeError(delta.error)
        now = time.monotonic()
        first = first or (now if delta.tokens else 0.0)
        said += [now] * len(delta.tokens)
        tokens += len(delta.tokens)
    assert tokens == arrival.output_tokens
    return Timing(due, sent, first, time.monotonic(), tokens)


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
        request = one_request(client, arrival, vocabulary, begun + arrival.at, [])
        tasks.append(asyncio.create_task(request))
    return await asyncio.gather(*tasks)


async def closed_loop(client: EngineClient, config: Config, seconds: float) -> float:
    """So long of each number of clients; returns output tokens a second of the last, without the
    first quarter of its time.
    """
    vocabulary, speed = config.model.shape.vocab_size, 0.0
    coming = iter(arrivals_of(config, 100_000, CALIBRATION_SEED))
    for clients in CLIENTS:
        until = time.monotonic() + seconds
        said: list[float] = []

        async def ask(until: float = until, said: list[float] = said) -> None:
            while time.monotonic() < until:
                await one_request(client, next(coming), vocabulary, 0.0, said)

        await asyncio.gather(*(ask() for _ in range(clients)))
        settled = until - 0.75 * seconds
        speed = sum(settled < at < until for at in said) / (until - settled)
        print(f"{clients} clients: {speed:.1f} output tokens/s", flush=True)
    return speed
