"""Very many small traces: all come to an end within a bound of steps and leave nothing behind.

    python -m tests.scheduler.many_traces [--traces 100000] [--seed 1]

A trace is a string of bytes, eight an action, so that hypothesis makes thousands in little time;
what they do is what `test_properties` does. The seed of every chunk is printed, and
gives the same traces again. One that fails is shrunk, and printed with its actions in words.
"""

import argparse
import time
from typing import Any

from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from servekit.scheduler.groups import Group
from tests.scheduler.fake_executor import VOCAB
from tests.scheduler.traffic import BRANCHES, ORDERS, Traffic

CHUNK = 1000
"""Traces of one seed."""
RULES: dict[str, list[Any]] = {
    "policy": ["continuous", "continuous", "continuous", "static"],
    "order": ORDERS,
    "reserve": ["greedy", "greedy", "predicted", "worst_case"],
    "victim": ["cheapest", "last_arrived"],
    "depth": [1, 2, 3],
    "seats": [2, 1, 3, 4, 5, 6],
    "extra_budget": list(range(16)),
    "num_blocks": list(range(3, 13)),
    "block_size": [1, 2, 3, 4],
    "prefix_caching": [True, True, False],
    "window": [None, None, None, Group(3), Group(6), Group(4, chunked=True)],
    "host_blocks": [0, 0, 6, 30],
    "seconds": [False, True],
    "max_preemptions": [0, 1, 2],
    "max_skip_ahead": [0, 1, 2, 3],
    "aging_s": [0.5, 30.0],
    "takeovers_per_s": [0.0, 1.0, 4.0],
    "batch_share": [0.3, 0.0, 1.0],
    "max_step_ms": [None, 5.0, 20.0],
    "decode_slowdown": [None, 1.5],
}
"""Values of each rule; a byte chooses one, and a small one the simplest."""
ACTIONS = ["plan", "commit"] * 2 + ["run"] * 4 + ["arrive"] * 5
ACTIONS += ["draft", "draft", "abort", "hold", "release"]
"""`run` is up to eight steps."""
WIDTH = 8
"""Bytes of an action."""
RIVALS = 6
"""In one trace of so many others come all the time that go first."""

drawn = st.binary(min_size=len(RULES) + 1 + 16 * WIDTH, max_size=len(RULES) + 1 + 40 * WIDTH)
"""Rules, whether there are rivals, and actions. One draw, or most traces were made of others."""


def rules_of(trace: bytes) -> dict[str, Any]:
    pairs = zip(RULES.items(), trace, strict=False)
    return {name: values[byte % len(values)] for (name, values), byte in pairs}


def act(traffic: Traffic, action: bytes) -> str:
    """Do it, if it can be done now; returns what was done."""
    name, (which, *more) = ACTIONS[action[0] % len(ACTIONS)], action[1:]
    scheduler = traffic.scheduler
    if name == "arrive":
        return arrive(traffic, action) if traffic.capacity > 1 else ""
    if name == "plan":
        before = len(traffic.in_flight)
        traffic.plan()
        return name if len(traffic.in_flight) > before else ""
    if name == "run":
        for _ in range(1 + which % 8):
            traffic.step()
        return f"run {1 + which % 8}"
    if name == "commit":
        if not traffic.in_flight:
            return ""
        ids = [row.request_id for row in traffic.in_flight[0].rows]
        failed = [ids[which % len(ids)]] if more[0] % 16 == 15 else []
        traffic.commit(failed)
        return f"commit, of which {failed} fail" if failed else name
    there = {
        "draft": scheduler.running,
        "abort": list(scheduler.requests.values()),
        "hold": list(scheduler.line.requests()),
        "release": list(scheduler.line.held.values()),
    }[name]
    if not there:
        return ""
    request = there[which % len(there)]
    if name == "draft":
        traffic.draft(request, 1 + more[0] % 4, wrong=bool(more[1] % 2))
    elif name == "abort":
        traffic.abort(request.id)
    elif name == "hold":
        traffic.hold(request, 1 + more[0] % 4)
    else:
        scheduler.release(request.id)
    return f"{name} {request.id}"


def arrive(traffic: Traffic, action: bytes) -> str:
    _, start, size, answer, kind, who, *tail = action
    prompt = [*BRANCHES[start % len(BRANCHES)], *(byte % VOCAB for byte in (tail * 3)[: size % 7])]
    asked: dict[str, Any] = {
        "min_tokens": kind % 4,
        "stops": kind // 4 % 2 == 1,
        "salt": [b"", b"", b"tenant"][kind // 8 % 3],
        "slo_class": ["interactive", "batch"][kind // 24 % 2],
        "arrived": len(traffic.clients.requests) - 2.5 * (kind // 48 % 2),
        "tenant": ["", "a", "b"][who % 3],
        "priority": who // 3 % 3 - 1,
    }
    request = traffic.arrive(prompt, 1 + answer % 16, **asked)
    return f"arrive {request.prompt}, at most {request.max_tokens}, {asked}"


def live(trace: bytes) -> None:
    """From an empty scheduler to an empty one."""
    rules, body = rules_of(trace), trace[len(RULES) + 1 :]
    actions = [body[at : at + WIDTH] for at in range(0, len(body) - WIDTH + 1, WIDTH)]
    # a pool without a share is served when the other wants nothing, and rivals always do
    starves = rules["order"] == "two_pool" and not rules["batch_share"]
    rivals = trace[len(RULES)] % RIVALS == RIVALS - 1 and not starves
    traffic, done = Traffic(**rules), []
    try:
        for number, action in enumerate(actions):
            done.append(act(traffic, action))
            if number % 4 == 0:
                traffic.scheduler.check()
        traffic.end(rivals=rivals, checks=4)
    except BaseException:
        note("\n".join([f"{rules}, rivals={rivals}", *filter(None, done)]))
        raise


def run(traces: int, of: int) -> None:
    """So many traces of the seed `of`; raises what the shrunk one of those that fail raises."""
    chunk = settings(
        max_examples=traces,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    seed(of)(chunk(given(drawn)(live)))()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    done = 0
    for of in range(words.seed, words.seed + -(-words.traces // CHUNK)):
        before, count = time.process_time(), min(CHUNK, words.traces - done)
        print(f"seed {of}: {count} traces", end="", flush=True)
        run(count, of)
        done += count
        each = (time.process_time() - before) / count
        print(f" end well, {1000 * each:.1f} ms each; {done} so far", flush=True)


if __name__ == "__main__":
    main()
