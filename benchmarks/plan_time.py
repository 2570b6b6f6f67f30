"""Wall time of planning commands, beside that of an interpreter which imports what they need.

    python -m benchmarks.plan_time [--rounds 5]

Each round runs every command once, in turn, in a process of its own; medians in seconds. Nothing
else should run beside it. Then, of plans that simulate: the seconds that a run was expected to
take, by which its requests are chosen, and those that it took.
"""

import argparse
import statistics
import subprocess
import sys
import time

FLOOR = "import hydra, omegaconf, pydantic, rich.console"
COMMAND = "import sys; from servekit.cli import main; sys.exit(main())"
LINES = {
    "plan, fits": "plan +recipe=chat_llama8b",
    "plan, not simulated": "plan model=llama3_8b hardware=h100",
    "plan, near capacity": "plan +recipe=chat_llama8b workload.request_rate=22",
    "plan of a trace": "plan +recipe=chat_llama8b workload=azure_code",
    "plan, 671 B": "plan +recipe=chat_deepseek_v3_h200",
    "plan, with --explain": "plan +recipe=chat_llama8b --explain",
    "refused: memory": "plan model=llama3_70b hardware=l4",
    "refused: memory, 671 B": "plan model=deepseek_v3 hardware=h100 parallelism=tp8",
    "refused: targets": "plan +recipe=chat_llama8b slo.tpot_ms=6",
    "refused: overloaded": "plan +recipe=chat_llama8b workload.request_rate=60",
    "six plans in a table": "plan -m +recipe=chat_llama8b hardware=l4,a100_80g,h100 "
    "kv.dtype=auto,fp8",
}


RUNS = (
    *("+recipe=chat_llama8b", "+recipe=chat_llama8b workload.request_rate=22"),
    *("+recipe=batch_llama8b", "+recipe=code_qwen3_30b_a3b", "+recipe=chat_llama70b_h100"),
    *("+recipe=chat_deepseek_v3_h200", "+recipe=chat_llama8b workload=azure_code"),
)
"""Deployments of which a plan simulates some requests."""


def runs() -> None:
    """Prints what runs were expected to take and took, of 3 the fastest, after one that imports."""
    from servekit.config.compose import load
    from servekit.planner.outcome import assess
    from servekit.planner.prediction.sample import SEED
    from servekit.planner.prediction.simulated import affordable, cost_s
    from servekit.simulator.run import simulate

    for words in RUNS:
        config = load(words.split()).config
        prediction = assess(config).prediction
        count = affordable(config, prediction) if prediction else 0
        if not prediction or not count:
            print(f"{words}: not simulated")
            continue
        taken = min(simulate(config, requests=count, seed=SEED).wall_s for _ in range(3))
        expected = cost_s(config, prediction, count)
        print(f"{words}: {count} requests, expected {expected:.2f} s, took {taken:.2f} s")


def seconds(code: str, words: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    assert done.returncode in (0, 2), done.stderr.decode()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    lines = {"the interpreter and its imports": (FLOOR, "")} | {
        name: (COMMAND, words) for name, words in LINES.items()
    }
    pair = ["+recipe=chat_llama8b", "+recipe=chat_llama8b kv.dtype=fp8 hardware=h200"]
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (code, words) in lines.items():
            times.setdefault(name, []).append(seconds(code, words.split()))
        times.setdefault("diff of two lists of words", []).append(seconds(COMMAND, ["diff", *pair]))
    floor = statistics.median(next(iter(times.values())))
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:32} {median:6.2f} s  {median / floor:5.1f} x")
    runs()


if __name__ == "__main__":
    main()
