"""What deciding costs: microseconds of `plan` and `commit` a step, with nothing computed.

    python -m benchmarks.scheduler_step [--vllm-python PATH] [--pairs 3]

Some requests decode, 10,000 wait. Decode-only: every seat is taken. Mixed: one more seat is free,
and each step has 512 tokens of waiting prompts of 2,048 beside the decodes; measured once 512 of
these prompts have been served. Blocks of 16, prefix caching, an end token. Seconds are CPU time of
the thread, so that neighbours count less.
With arrivals: and the part of a prompt that a step takes of what it costs to make and add its
request, for whoever hashes prompts then and not when they are looked up.

`--vllm-python` names an interpreter that can import vLLM; its V1 scheduler is then given the same
requests and measured in turn with ours, each in a process of its own.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servekit.scheduler.scheduler import Scheduler

RUNNING = (16, 256, 1024)
WAITING = 10_000
BLOCK = 16
PROMPT = 512
LONG = 2048
CHUNK = 512
WARM = 512
"""Long prompts that are served first: ours learns from the first 500 how long answers become."""
LONGS = WARM + 200
STEPS = 208
"""13 blocks of tokens: every phase of a block counts alike."""
ROOT = Path(__file__).resolve().parents[1]

Step = tuple[float, int, int]
"""Seconds, how many of its rows sample, tokens."""
Measured = dict[str, float]
"""Means a step: microseconds, without and with its share of arrivals; sampling rows; tokens."""


def load_of(running: int, kind: str) -> dict[str, int]:
    mixed = kind == "mixed"
    answer = 2 * STEPS + 200 + (running + WARM * LONG // CHUNK if mixed else 0)
    blocks_each = (PROMPT + answer) // BLOCK + 3
    return {
        "seats": running + mixed,
        "budget": running + CHUNK if mixed else 8192,
        "block": BLOCK,
        "blocks": running * blocks_each + 2000,
        "steps": STEPS,
        "answer": answer,
    }


def prompts_of(running: int, load: dict[str, int]) -> list[tuple[list[int], int]]:
    """Of each request its tokens and max_tokens. Lengths differ, so that blocks fill at different
    steps; prompts of those that decode share nothing.
    """
    random = Random(1)
    sizes = [PROMPT + random.randrange(BLOCK) for _ in range(running)]
    decoding = [[random.randrange(1000, 30000) for _ in range(size)] for size in sizes]
    waiting = [[1000 + id, *range(3000, 2999 + LONG)] for id in range(LONGS)]
    waiting += [[1000 + id, *range(3000, 3063)] for id in range(LONGS, WAITING)]
    return [(prompt, load["answer"]) for prompt in decoding] + [(p, 1) for p in waiting]


def scheduler_of(load: dict[str, int]) -> "Scheduler":
    from servekit.config.compose import load as compose
    from servekit.scheduler.groups import KvSettings
    from servekit.scheduler.scheduler import Scheduler
    from servekit.scheduler.settings import Settings

    config = compose(
        [
            "+recipe=chat_smollm2",
            f"scheduler.max_num_seqs={load['seats']}",
            f"scheduler.max_num_batched_tokens={load['budget']}",
            f"scheduler.max_num_waiting={2 * WAITING}",
            "scheduler.max_step_ms=null",
        ]
    ).config
    kv = KvSettings(num_blocks=load["blocks"], block_size=BLOCK)
    return Scheduler(Settings(config.scheduler, config.slo, kv, 32768))


def ours(running: int, kind: str) -> Measured:
    from servekit.scheduler.batch import Outcome
    from servekit.scheduler.request import Request

    load = load_of(running, kind)
    scheduler = scheduler_of(load)

    def arrive(id: int, prompt: list[int], max_tokens: int) -> None:
        stop_ids = frozenset({2})
        scheduler.add(Request(id, prompt, max_tokens, stop_ids=stop_ids, arrived=float(id)))

    def step() -> Step:
        before = time.thread_time()
        batch = scheduler.plan(0.0)
        planned = time.thread_time()
        assert batch is not None
        sampled = {row.request_id: [7] for row in batch.others if row.samples}
        outcome = Outcome([7] * len(batch.decodes.ids), sampled)
        sampling, tokens = len(batch.decodes.ids) + len(sampled), batch.num_tokens
        ran = time.thread_time()
        scheduler.commit(batch, outcome, 0.0)
        return planned - before + time.thread_time() - ran, sampling, tokens

    return measure(running, load, arrive, step)


def measure(
    running: int,
    load: dict[str, int],
    arrive: Callable[[int, list[int], int], None],
    step: Callable[[], Step],
) -> Measured:
    """Of a scheduler that is empty yet."""
    arrivals = []
    for id, (prompt, max_tokens) in enumerate(prompts_of(running, load)):
        before = time.thread_time()
        arrive(id, prompt, max_tokens)
        arrivals += [time.thread_time() - before] if len(prompt) == LONG else []
    while step()[1] < running:
        pass
    served = 0
    while load["seats"] > running and served < WARM:
        served += step()[1] - running
    gc.collect()
    gc.disable()
    steps = [step() for _ in range(load["steps"])]
    seconds, sampling, tokens = (statistics.mean(column) for column in zip(*steps, strict=True))
    share = (tokens - running) / LONG
    return {
        "step": 1e6 * seconds,
        "with_arrivals": 1e6 * (seconds + share * statistics.mean(arrivals)),
        "sampling": sampling,
        "tokens": tokens,
    }


def measured(python: str, module: str, running: int, kind: str) -> Measured:
    """In a process of its own."""
    words = [python, "-m", module, str(running), kind]
    child = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{child.stderr[-2000:]}")
    found: Measured = json.loads(child.stdout.splitlines()[-1])
    return found


def row_of(running: int, kind: str, vllm_python: str | None, pairs: int) -> str:
    """Medians of each, and of the ratios of pairs."""
    own: list[Measured] = []
    other: list[Measured] = []
    for _ in range(pairs):
        own.append(measured(sys.executable, "benchmarks.scheduler_step", running, kind))
        if vllm_python:
            module = "benchmarks.scheduler_step_vllm"
            other.append(measured(vllm_python, module, running, kind))
            for count in ("sampling", "tokens"):
                if round(own[-1][count], 2) != round(other[-1][count], 2):
                    raise SystemExit(f"{count} a step: {own[-1][count]} and {other[-1][count]}")
    cells = [str(running), kind, f"{own[0]['tokens']:.0f}"]
    for name in ("step", "with_arrivals"):
        cells.append(f"{statistics.median(one[name] for one in own):.0f}")
        if other:
            ratios = [theirs[name] / mine[name] for mine, theirs in zip(own, other, strict=True)]
            cells.append(f"{statistics.median(one[name] for one in other):.0f}")
            cells.append(f"{statistics.median(ratios):.1f}")
        if kind == "decode":  # nobody comes
            cells += [""] * (3 if other else 1)
            break
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", help="an interpreter that can import vLLM")
    parser.add_argument("--pairs", type=int, default=3)
    words = parser.parse_args()
    theirs = [" vLLM V1, us ", " ratio "] if words.vllm_python else []
    heads = [" running ", " step ", " tokens ", " servekit, us ", *theirs]
    heads += [" with arrivals, us ", *theirs]
    print(f"|{'|'.join(heads)}|\n|{'---|' * len(heads)}")
    for running in RUNNING:
        for kind in ("decode", "mixed"):
            print(row_of(running, kind, words.vllm_python, words.pairs), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].isdecimal():
        print(json.dumps(ours(int(sys.argv[1]), sys.argv[2])))
    else:
        main()
