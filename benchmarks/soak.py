"""Streams against a running server, some of them dropped midway; then: is everything as before?

    python -m benchmarks.soak --url http://127.0.0.1:8000 --seconds 60 --streams 64

Exit 0 if every stream that was not dropped ended with `[DONE]`, every KV block is free again, and
the memory of the server's processes did not grow from the third quarter to the last by 3 %.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field

import httpx
import psutil

WORDS = ["tell", "me", "a", "long", "story", "about", "the", "sea", "and", "ledger", "names"]


@dataclass(slots=True)
class Report:
    finished: int = 0
    dropped: int = 0
    refused: int = 0
    unterminated: list[str] = field(default_factory=list)
    tokens: int = 0
    memory_mib: list[float] = field(default_factory=list)
    blocks_used: float = -1.0

    @property
    def growth(self) -> float:
        """Resident memory of the last quarter over that of the third, less one. The least of each
        is taken: a step under way has tensors that are gone after it, and what leaks stays. In the
        first half sizes of steps are still met for the first time, and their memory is kept.
        """
        quarter = max(1, len(self.memory_mib) // 4)
        return min(self.memory_mib[-quarter:]) / min(self.memory_mib[-2 * quarter : -quarter]) - 1

    @property
    def good(self) -> bool:
        return not self.unterminated and self.blocks_used == 0 and self.growth < 0.03


def resident_mib(pid: int) -> float:
    """Memory of a process and its children, MiB."""
    root = psutil.Process(pid)
    return sum(p.memory_info().rss for p in [root, *root.children(recursive=True)]) / 2**20


async def metric(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
    ]
    if not values:
        raise LookupError(f"/metrics has no {name}")
    return sum(values)


def body(chance: random.Random, model: str) -> dict[str, object]:
    words = " ".join(chance.choice(WORDS) for _ in range(chance.randint(4, 300)))
    return {
        "model": model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": chance.randint(8, 96),
        "seed": chance.randrange(2**31),
        "stream": True,
    }


async def one_stream(
    client: httpx.AsyncClient, model: str, chance: random.Random, report: Report
) -> None:
    """One request; one in three is dropped after a random number of events."""
    patience = chance.randint(0, 20) if chance.random() < 1 / 3 else None
    last, events = "", 0
    async with client.stream("POST", "/v1/chat/completions", json=body(chance, model)) as answer:
        if answer.status_code == 429:
            report.refused += 1
            return
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if patience is not None and events >= patience:
                report.dropped += 1
                return
            last, events = line[6:], events + 1
            report.tokens += last.startswith("{") and '"content"' in last
    if last == "[DONE]":
        report.finished += 1
    else:
        report.unterminated.append(last[:200])


async def soak(url: str, pid: int, seconds: float, streams: int, seed: int = 0) -> Report:
    report = Report()
    limits = httpx.Limits(max_connections=streams + 4, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        deadline = time.monotonic() + seconds

        async def stream_after_stream(number: int) -> None:
            chance = random.Random(seed * 1000 + number)
            while time.monotonic() < deadline:
                await one_stream(client, model, chance, report)

        tasks = [asyncio.create_task(stream_after_stream(number)) for number in range(streams)]
        while time.monotonic() < deadline:
            report.memory_mib.append(resident_mib(pid))
            await asyncio.sleep(0.5)
        await asyncio.gather(*tasks)
        await asyncio.sleep(1.0)
        report.memory_mib.append(resident_mib(pid))
        report.blocks_used = await metric(client, "servekit_kv_used_tokens")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--pid", type=int, required=True, help="process id of the server")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=64)
    words = parser.parse_args()
    report = asyncio.run(soak(words.url, words.pid, words.seconds, words.streams))
    print(
        json.dumps(
            {
                "finished": report.finished,
                "dropped": report.dropped,
                "refused": report.refused,
                "unterminated": report.unterminated,
                "tokens_per_s": round(report.tokens / words.seconds, 1),
                "memory_mib_half_way": round(report.memory_mib[len(report.memory_mib) // 2]),
                "memory_mib_end": round(report.memory_mib[-1]),
                "kv_used_tokens_after": report.blocks_used,
            },
            indent=2,
        )
    )
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
