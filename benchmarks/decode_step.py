"""One decode step, timed: SmolLM2-135M in bfloat16, sixteen requests at 260 to 400 tokens.

    GOMP_SPINCOUNT=5000 python -m benchmarks.decode_step [--steps 15]

Prints the median step in milliseconds. Environment variables of OpenMP are the caller's, so that
they can be compared; nothing else should run beside it, or one other process on purpose.
"""

import argparse
import random
import statistics
import time

import torch

from servekit.config.compose import load
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
from servekit.model.sources import fetch

ROWS = 16
SETTLE = 12
"""Steps that take the prompts in and reach the steady state."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    steps = parser.parse_args().steps
    words = ["+recipe=chat_smollm2", f"scheduler.max_num_seqs={ROWS}", "kv.prefix_caching=false"]
    config = load(words).config
    assert config.hardware.threads is not None
    torch.set_num_threads(config.hardware.threads)
    path = fetch(config.model.source, config.model.sha256, lambda phase, done, total: None)
    engine = LocalEngine.load(config, path)
    chance = random.Random(0)
    greedy = Sampling(max_tokens=SETTLE + steps + 1, seed=0, temperature=0.0)
    for row in range(ROWS):
        engine.submit([chance.randrange(20, 49000) for _ in range(256 + 8 * row)], greedy)
    for _ in range(SETTLE):
        engine.core.step()
    taken = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.core.step()
        taken.append(time.perf_counter() - started)
    print(f"{statistics.median(taken) * 1e3:.1f} ms a step, median of {steps}")


if __name__ == "__main__":
    main()
