"""What the server's path costs: tokens over HTTP against the engine alone, with a null model.

    python -m benchmarks.server_overhead
        tokens a second of 64 streams, over HTTP and of the engine alone
    python -m benchmarks.server_overhead --storm 200
        p99 between tokens of the streams, while so many requests a second are refused by a bare
        server beside it, and while they are refused by this one; best on more cores than two, for
        the clients and the engine want some too

The model is a pause of 5 ms a step; scheduler, sockets, detokeniser, JSON and HTTP are the real
ones. `server_us_per_token` is processor time of the server process, which does not depend on who
else is on the machine. Exit 0 if HTTP reaches 95 % of the engine alone, or, with --storm, if p99 is
raised by no more than 10 %.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from benchmarks.null_engine import STEP_MS, directly
from servekit.config.compose import load

RECIPE = ["+recipe=chat_smollm2", "server.port=0", "kv.memory_gib=null", "server.drain_s=0"]
LEAST, MOST = 0.95, 1.10
PROMPT_TOKENS = 32


def words_of(streams: int) -> list[str]:
    """Seats for all, and one place in the queue, so that it is soon full."""
    return [
        *RECIPE,
        f"kv.capacity_tokens={streams * 8192}",
        f"scheduler.max_num_seqs={streams}",
        f"scheduler.max_num_batched_tokens={max(512, streams)}",
        "scheduler.max_num_waiting=1",
    ]


@contextmanager
def null_server(streams: int, step_ms: float) -> Iterator[tuple[str, psutil.Process]]:
    """Its address and process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.null_server", *words_of(streams)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, STEP_MS: str(step_ms)},
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def body(model: str, prompt: list[int], tokens: int) -> str:
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True}
    return json.dumps({**asked, "ignore_eos": True, "temperature": 0})


def clients(url: str, request: str, streams: int) -> subprocess.Popen[str]:
    module = [sys.executable, "-m", "benchmarks.stream_clients"]
    return subprocess.Popen(
        [*module, url, request, str(streams)], stdout=subprocess.PIPE, text=True
    )


def seen(reading: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = reading.communicate()
    if reading.returncode:
        raise RuntimeError("a stream was cut off")
    return dict(json.loads(out))


def storm(url: str, request: str, rate: float, reading: subprocess.Popen[str]) -> dict[str, int]:
    """Requests at `rate` a second until the streams are read; how many got which status."""
    statuses: dict[str, int] = {}
    with httpx.Client(timeout=30) as client:
        due = time.perf_counter()
        while reading.poll() is None:
            answer = client.post(
                f"{url}/v1/completions",
                content=request,
                headers={"content-type": "application/json"},
            )
            statuses[str(answer.status_code)] = statuses.get(str(answer.status_code), 0) + 1
            due += 1 / rate
            time.sleep(max(0.0, due - time.perf_counter()))
    return statuses


@contextmanager
def bare_server() -> Iterator[str]:
    """The address of one that refuses everything."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_refusals"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate()


def over_http(
    words: argparse.Namespace, prompt: list[int], rate: float, elsewhere: str | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """What the clients saw, with the processor time of the server, and who was refused, by it or
    by whoever listens `elsewhere`."""
    with null_server(words.streams, words.step_ms) as (url, process):
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        before = process.cpu_times()
        request = body(model, prompt, words.tokens)
        filler: subprocess.Popen[str] | None = None
        reading = clients(url, request, words.streams)
        statuses: dict[str, int] = {}
        if rate:
            while held(url) < words.streams:
                time.sleep(0.02)
            # whoever takes the one place in the queue; the others are refused
            filler = clients(url, body(model, prompt, 1), 1)
            while held(url) < words.streams + 1:
                time.sleep(0.02)
            statuses = storm(
                elsewhere or url,
                request.replace('"stream": true', '"stream": false'),
                rate,
                reading,
            )
        report = seen(reading)
        after = process.cpu_times()
        if filler is not None:
            filler.communicate()
        cpu_s = after.user + after.system - before.user - before.system
        report["server_us_per_token"] = 1e6 * cpu_s / (words.streams * words.tokens)
        return report, statuses


def held(url: str) -> float:
    """Requests that run or wait."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    names = ("servekit_requests_running ", "servekit_requests_waiting ")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1000, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--storm", type=float, default=0.0, help="refused requests a second")
    words = parser.parse_args()
    random.seed(0)
    prompt = [random.randrange(1000, 6000) for _ in range(PROMPT_TOKENS)]
    total = words.streams * words.tokens
    report: dict[str, Any] = {}
    if words.storm:
        with bare_server() as elsewhere:
            quiet, _ = over_http(words, prompt, words.storm, elsewhere)
    else:
        quiet, _ = over_http(words, prompt, 0.0)
    report |= {"quiet": quiet, "http_tokens_per_s": total / quiet["seconds"]}
    if words.storm:
        stormy, statuses = over_http(words, prompt, words.storm)
        ratio = stormy["gap_p99_ms"] / quiet["gap_p99_ms"]
        report |= {"storm": stormy, "statuses": statuses, "p99_ratio": ratio}
        good = ratio <= MOST
    else:
        config = load(words_of(words.streams)).config
        alone = directly(config, words.step_ms / 1000, [prompt] * words.streams, words.tokens)
        report |= {"engine_tokens_per_s": alone, "share": report["http_tokens_per_s"] / alone}
        good = report["share"] >= LEAST
    print(json.dumps(report, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
