"""How fast serving is simulated, on one core.

    python -m benchmarks.simulate_speed [--requests 20000] [--runs 3] [WORD ...]

The words are those of `servekit simulate`; `+recipe=chat_llama8b` if there are none. Seconds are
CPU time of the process. Beside each run the time of 10 million additions in a loop is taken, half
before and half after it: a machine that does other things at once is slower at both. On a quiet one
of today they take about 0.45 s, and the last column is what the run would take there.
"""

import argparse
import time

from servekit.config.compose import load
from servekit.simulator.run import simulate

QUIET_S = 0.45


def additions_s(count: int) -> float:
    total, before = 0, time.process_time()
    for number in range(count):
        total += number
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("words", nargs="*", default=["+recipe=chat_llama8b"])
    asked = parser.parse_args()
    config = load(asked.words).config
    print("| requests | steps | CPU, s | requests/s | us a step | 10 M additions, s | quiet, s |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(1, asked.runs + 1):
        loop = additions_s(5_000_000)
        before = time.process_time()
        run = simulate(config, requests=asked.requests, seed=seed)
        seconds = time.process_time() - before
        loop += additions_s(5_000_000)
        steps = sum(len(copy.steps) for copy in run.copies)
        print(
            f"| {len(run.served)} | {steps} | {seconds:.1f} | {len(run.served) / seconds:.0f} "
            f"| {1e6 * seconds / steps:.0f} | {loop:.2f} | {seconds * QUIET_S / loop:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
