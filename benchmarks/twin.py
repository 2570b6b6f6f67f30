"""Does the simulator say what the engine then does? One small model, three loads, the same clients.

    python -m benchmarks.twin [--seconds S] [--requests N N N] [--out FILE] [words...]

Serves SmolLM2 in an engine process of its own, as the server does (`servekit.engine.client`), with
one thread of computation. A first engine is asked by 1 to 16 clients who never wait: its
log of steps is what step times are fitted to, and its fullest part says what can be had. Then, by
a new engine each, Poisson arrivals at shares of that; the simulator is given the same arrivals and
the fitted step times, and both are asked for the same numbers. "steps replayed" is the simulator
with what the engine's own steps of that run took, each for a step of its kind, so what is left is
not for step times to explain.
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
    CALIBRATION_SEED,
    SEED,
    arrivals_of,
    closed_loop,
    engine,
    open_loop,
)
from servekit.config.compose import load
from servekit.config.schema import Config
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
LOADS = {"light": 0.3, "knee": 0.85, "over": 1.3}
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
        taken.setdefault(shape, deque()).append(step["seconds"])

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


class Measured(NamedTuple):
    load: str
    rate: float
    requests: int
    seconds: float
    lag_ms: float
    """Of the client behind its own plan, at most."""
    busy: float
    """Share of the time that steps account for."""
    measured: Numbers
    simulated: Numbers
    replayed: Numbers


def compare(path: Path, folder: Path, words: list[str], seconds: float, counts: list[int]) -> str:
    log = folder / "calibration.jsonl"
    config = load([*words, f"telemetry.step_log={log}"]).config
    capacity = asyncio.run(engine(config, path, lambda c: closed_loop(c, config, seconds)))
    times = calibrate(log)
    print(times, flush=True)
    rate = capacity / mean_output(config)
    found = []
    for (load_name, share), count in zip(LOADS.items(), counts, strict=True):
        found.append(one_load(path, folder, words, load_name, share * rate, count, times))
        print(table(found[-1:]), flush=True)
    return f"{times}\n\n" + table(found)


def mean_output(config: Config) -> float:
    """Of the requests themselves, which are rounded and clipped."""
    some = arrivals_of(config, 2000, CALIBRATION_SEED)
    return sum(one.output_tokens for one in some) / len(some)


def one_load(
    path: Path,
    folder: Path,
    words: list[str],
    name: str,
    rate: float,
    count: int,
    times: Calibration,
) -> Measured:
    log = folder / f"{name}.jsonl"
    settings = [f"telemetry.step_log={log}", f"workload.request_rate={rate:.4f}"]
    config = load([*words, *settings]).config
    timings = asyncio.run(engine(config, path, lambda c: open_loop(c, config, count)))
    steps = [json.loads(line)["seconds"] for line in log.read_text().splitlines()]
    span = max(one.last for one in timings) - min(one.due for one in timings)
    return Measured(
        load=name,
        rate=rate,
        requests=count,
        seconds=span,
        lag_ms=1e3 * max(one.sent - one.due for one in timings),
        busy=sum(steps) / span,
        measured=numbers((one.due, one.first, one.last, one.tokens) for one in timings),
        simulated=simulated(config, count, times, SimulatedExecutor),
        replayed=simulated(config, count, times, replaying(log)),
    )


def table(found: list[Measured]) -> str:
    lines = [
        "| load | | measured | simulated | off | steps replayed | off |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        title = f"{one.load}: {one.rate:.2f} req/s, {one.requests} in {one.seconds:.0f} s"
        for name in Numbers._fields:
            real, modelled, replayed = (
                getattr(of, name) for of in (one.measured, one.simulated, one.replayed)
            )
            offs = [f"{of / real - 1:+.1%}" for of in (modelled, replayed)]
            values = f"{real:.1f} | {modelled:.1f} | {offs[0]} | {replayed:.1f} | {offs[1]}"
            lines.append(f"| {title} | {name} | {values} |")
            title = ""
    notes = [
        f"{one.load}: steps took {one.busy:.0%} of the time; the client was at most "
        f"{one.lag_ms:.1f} ms behind"
        for one in found
    ]
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=20, help="of each number of clients")
    parser.add_argument("--requests", type=int, nargs=3, default=[60, 120, 160])
    parser.add_argument("--keep", type=Path, help="a folder for the step logs")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    words = [*WORDS, *given.words]
    model = load(words).config.model
    path = fetch(model.source, model.sha256, lambda phase, done, total: None)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        shown = compare(path, folder, words, given.seconds, given.requests)
    print(shown)
    if given.out:
        command = "python -m benchmarks.twin " + " ".join(sys.argv[1:])
        given.out.write_text(
            f"# Twin\n\n{shown}\n\nCommand: `{command}`\n\n{platform.platform()}\n"
        )


if __name__ == "__main__":
    main()
