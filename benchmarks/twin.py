"""Does the simulator say what the engine then does? One small model, three loads, the same clients.

    python -m benchmarks.twin [--seconds S] [--lasts S] [--out FILE] [words...]

Serves SmolLM2 in an engine process of its own, as the server does (`servekit.engine.client`), with
one thread of computation. It is asked by clients who never wait, one more and one more up to 16;
then comes the load, Poisson arrivals; then 16 clients again, one less and one less. The log of the
steps before and after the load is what step times are fitted to: where the engine's memory lies
makes steps some percent longer or shorter, and other tenants of a machine come and go, so a fit
of another process or another hour is off by as much. The simulator is given the same arrivals and
the fitted step times, and both are asked for the same numbers. "steps replayed" is the simulator
with what the engine's own steps of that load took, each for a step of its kind, so what is left is
not for step times to explain.

Loads are shares of what the first engine gave 16 clients: one that leaves the engine idle at times,
the knee where seats begin to run out, and one that the engine cannot serve. The last two keep a
distance from capacity, where a comparison says little: above it the wait grows by (share - 1) of
each second, so steps that take 1 % longer make it 1 / (1 - 1/share) % longer, which is 11 % at a
share of 1.1 and 3 % at 1.5; just below it, a queue stays or goes by chance.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from benchmarks.twin_clients import (
    DOWN_SEED,
    SEED,
    UP_SEED,
    Timing,
    arrivals_of,
    closed_loop,
    engine,
    open_loop,
)
from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.engine.client import EngineClient
from servekit.model.sources import fetch
from servekit.scheduler.batch import Batch, Outcome
from servekit.simulator.calibrate import Calibration, calibrate
from servekit.simulator.executor import SimulatedExecutor, Work
from servekit.simulator.record import Served
from servekit.simulator.run import simulate
from servekit.simulator.statistics import percentile

WORDS = (
    *("+recipe=chat_smollm2", "hardware.threads=1", "scheduler.max_num_seqs=16"),
    *("model.dtype=float32", "kv.dtype=float32"),
    *("workload.prompt_tokens=32", "workload.prompt_cv=0.6"),
    *("workload.output_tokens=16", "workload.output_cv=0.6"),
)
"""Short prompts and answers, so that a minute has many of them on one core."""
LOADS = {"light": 0.3, "knee": 0.8, "over": 1.5}
"""Of the requests a second that the engine can serve."""


class Numbers(NamedTuple):
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float
    output_tokens_per_s: float


def numbers(requests: Iterable[tuple[float, float, float, int]]) -> Numbers:
    """Of (arrival, first token, last token, tokens) of each; seconds."""
    asked = list(requests)
    ttft = sorted(first - at for at, first, _, _ in asked)
    tpot = sorted((last - first) / (n - 1) for _, first, last, n in asked if n > 1)
    span = max(last for _, _, last, _ in asked) - min(at for at, _, _, _ in asked)
    tokens = sum(n for _, _, _, n in asked)
    times = (percentile(of, share) for of in (ttft, tpot) for share in (0.5, 0.95))
    return Numbers(*(1e3 * seconds for seconds in times), tokens / span)


Shape = tuple[int, tuple[tuple[int, int], ...]]


def replaying(log: Path) -> type[SimulatedExecutor]:
    """An executor whose steps take what a measured step of the same kind took: the next one in the
    log of so many decodes and the same chunks of prompts, as long as there are any.
    """
    taken: dict[Shape, deque[float]] = {}
    for line in log.read_text().splitlines():
        step = json.loads(line)
        shape = step["decodes"], tuple((new, there) for new, there in step["prefill"])
        taken.setdefault(shape, deque()).append(step["seconds"] + step["between"])

    class Replayed(SimulatedExecutor):
        def run(self, batch: Batch) -> tuple[Outcome, Work]:
            outcome, work = super().run(batch)
            chunks = tuple((len(row.tokens), row.start) for row in batch.others)
            left = taken.get((len(batch.decodes.ids), chunks))
            seconds = left.popleft() if left else outcome.seconds
            return Outcome(outcome.decoded, outcome.tokens, seconds=seconds), work

        def ahead(self, *_: object) -> tuple[list[float], list[float]]:
            """Every step is run, however little happens in it."""
            return [], []

    return Replayed


def simulated(
    config: Config, count: int, times: Calibration, executor: type[SimulatedExecutor]
) -> Numbers:
    """The simulator's own numbers of the same requests; an answer's length is known to both."""
    with patch("servekit.simulator.replica.SimulatedExecutor", executor):
        run = simulate(config, requests=count, seed=SEED, step_time=times, foreseen=True)
    return numbers(map(seen, run.served))


def seen(one: Served) -> tuple[float, float, float, int]:
    assert one.first_token_at is not None
    assert one.finished_at is not None
    return one.at, one.first_token_at, one.finished_at, one.output_tokens


class Load(NamedTuple):
    """What was asked of one engine, and when."""

    speed: float
    """Output tokens a second of the most clients, before it."""
    config: Config
    """The arrivals'."""
    timings: list[Timing]
    steps: range
    """Ids of those of the load."""


class Measured(NamedTuple):
    name: str
    rate: float
    requests: int
    seconds: float
    lag_ms: float
    """Of the client behind its own plan, at most."""
    busy: float
    host: float
    """Shares of the time: of steps, and between them with work there."""
    fit: Calibration
    measured: Numbers
    simulated: Numbers
    replayed: Numbers


def compare(path: Path, folder: Path, words: list[str], seconds: float, lasts: float) -> str:
    found: list[Measured] = []
    capacity: float | None = None
    for name, share in LOADS.items():
        log = folder / f"{name}.all.jsonl"
        config = load([*words, f"telemetry.step_log={log}"]).config

        async def drive(
            client: EngineClient,
            config: Config = config,
            share: float = share,
            capacity: float | None = capacity,
        ) -> Load:
            speed = await closed_loop(client, config, seconds, UP_SEED)
            rate = (capacity or speed) / mean_output(config)
            asked = load([*words, f"workload.request_rate={share * rate:.4f}"]).config
            begun = steps_of(client)
            timings = await open_loop(client, asked, max(2, round(min(share, 1) * rate * lasts)))
            steps = range(begun + 1, steps_of(client) + 1)
            await closed_loop(client, config, seconds, DOWN_SEED)
            return Load(speed, asked, timings, steps)

        done: Load = asyncio.run(engine(config, path, drive))
        capacity = capacity or done.speed
        found.append(one_load(name, done, log))
        print(table(found[-1:]), flush=True)
    return f"{capacity:.1f} output tokens/s of the first engine's clients\n\n{table(found)}"


def steps_of(client: EngineClient) -> int:
    """So far; nobody is served now."""
    return client.stats.steps_total if client.stats else 0


def mean_output(config: Config) -> float:
    """Of the requests themselves, which are rounded and clipped."""
    some = arrivals_of(config, 2000, UP_SEED)
    return sum(one.output_tokens for one in some) / len(some)


def one_load(name: str, done: Load, log: Path) -> Measured:
    during, around = log.with_name(f"{name}.jsonl"), log.with_name(f"{name}.around.jsonl")
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    for file, inside in ((during, True), (around, False)):
        some = [step for step in steps if (step["id"] in done.steps) == inside]
        file.write_text("".join(json.dumps(step) + "\n" for step in some))
    timings, config, count = done.timings, done.config, len(done.timings)
    own = [step for step in steps if step["id"] in done.steps]
    span = max(one.last for one in timings) - min(one.due for one in timings)
    fit = calibrate(around)
    return Measured(
        name=name,
        rate=config.workload.request_rate,
        requests=count,
        seconds=span,
        lag_ms=1e3 * max(one.sent - one.due for one in timings),
        busy=sum(step["seconds"] for step in own) / span,
        host=sum(step["between"] for step in own) / span,
        fit=fit,
        measured=numbers((one.due, one.first, one.last, one.tokens) for one in timings),
        simulated=simulated(config, count, fit, SimulatedExecutor),
        replayed=simulated(config, count, fit, replaying(during)),
    )


def table(found: list[Measured]) -> str:
    lines = [
        "| load | | measured | simulated | off | steps replayed | off |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        title = f"{one.name}: {one.rate:.2f} req/s, {one.requests} in {one.seconds:.0f} s"
        for name in Numbers._fields:
            real, modelled, replayed = (
                getattr(of, name) for of in (one.measured, one.simulated, one.replayed)
            )
            offs = [f"{of / real - 1:+.1%}" for of in (modelled, replayed)]
            values = f"{real:.1f} | {modelled:.1f} | {offs[0]} | {replayed:.1f} | {offs[1]}"
            lines.append(f"| {title} | {name} | {values} |")
            title = ""
    notes = [
        f"* {one.name}: steps took {one.busy:.1%} of the time, the host between them "
        f"{one.host:.1%}; the client was at most {one.lag_ms:.1f} ms behind; of the "
        f"{one.fit.steps:,} steps before and after, half were within {one.fit.median_error:.1%} "
        f"and 95 % within {one.fit.p95_error:.0%} of their fit"
        for one in found
    ]
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=2, help="of each number of clients")
    parser.add_argument("--lasts", type=float, default=60, help="seconds of each load")
    parser.add_argument("--keep", type=Path, help="a folder for the step logs")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    words = [*WORDS, *given.words]
    model = load(words).config.model
    path = fetch(model.source, model.sha256, lambda phase, done, total: None)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        shown = compare(path, folder, words, given.seconds, given.lasts)
    print(shown)
    if given.out:
        command = "python -m benchmarks.twin " + " ".join(sys.argv[1:])
        about = __doc__.split("\n\n", 2)[2]
        given.out.write_text(
            f"# The simulator against the engine\n\n    {command}\n\n{about}\n{shown}\n\n"
            f"{platform.platform()}\n"
        )


if __name__ == "__main__":
    main()
