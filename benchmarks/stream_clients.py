"""Clients that cost little: streams read from bare sockets by one event loop, in a process of its
own, `stream_clients URL BODY STREAMS`; what they saw is a line of JSON.
"""

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

import uvloop

DONE = b"data: [DONE]"


class Stream(asyncio.Protocol):
    """One request; `times` are when something of its answer came."""

    def __init__(self, request: bytes, ended: asyncio.Future[None]) -> None:
        self.request, self.ended = request, ended
        self.times: list[float] = []
        self.tail = self.head = b""
        self.bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.head = self.head or data[:64]
        self.bytes += len(data)
        self.tail = (self.tail + data)[-600:]
        if DONE in self.tail and not self.ended.done():
            self.ended.set_result(None)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError(f"cut off: {self.tail!r}"))


async def read_all(url: str, body: str, streams: int) -> dict[str, object]:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    request = (head + body).encode()
    readers = [Stream(request, loop.create_future()) for _ in range(streams)]
    started = time.perf_counter()
    for one in readers:
        await loop.create_connection(lambda one=one: one, parts.hostname, parts.port)  # type: ignore[misc]
    await asyncio.gather(*(one.ended for one in readers))
    seconds = time.perf_counter() - started
    gaps = sorted(b - a for one in readers for a, b in zip(one.times, one.times[1:], strict=False))
    return {
        "seconds": seconds,
        "refused": sum(b" 200 " not in one.head for one in readers),
        "reads": sum(len(one.times) for one in readers),
        "mib": sum(one.bytes for one in readers) / 2**20,
        "gap_p50_ms": 1000 * gaps[len(gaps) // 2],
        "gap_p99_ms": 1000 * gaps[int(len(gaps) * 0.99)],
        "client_cpu_s": time.process_time(),
    }


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(read_all(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
