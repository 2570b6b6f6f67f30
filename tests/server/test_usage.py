"""What an answer took: usage always, so far and timings where they are asked for."""

import json
from typing import Any

import httpx
import pytest

from servekit.engine.messages import Event
from tests.server.conftest import Running, chat_body, chunks_of

ROUTES = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
}


def streamed(http: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = http.post(path, json={**ROUTES[path], "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return [json.loads(chunk) for chunk in chunks_of(answer.text)[:-1]]


@pytest.mark.parametrize("path", ROUTES)
def test_usage_is_the_same_in_both_modes_and_always_has_cached_tokens(
    server: Running, http: httpx.Client, path: str
) -> None:
    server.engine.cached_tokens = 2
    fields = {"n": 2, "stop": "wor"}
    whole = http.post(path, json={**ROUTES[path], **fields}).json()["usage"]
    *_, last = streamed(http, path, **fields, stream_options={"include_usage": True})
    assert last["usage"] == whole
    assert whole["prompt_tokens"] == len(server.engine.streams[0].prompt)
    assert whole["completion_tokens"] == 2 * len("Hello, wor")
    assert whole["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("path", ROUTES)
def test_usage_so_far_is_on_every_chunk_where_that_is_asked_for(
    http: httpx.Client, path: str
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(http, path, stream_options=options)
    if "chat" in path:
        opening, *chunks = chunks
        assert opening["usage"] is None
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [*range(1, 15), 14]
    assert [chunk["choices"] for chunk in chunks].index([]) == len(chunks) - 1


def test_usage_so_far_needs_usage(http: httpx.Client) -> None:
    options = {"continuous_usage_stats": True}
    answer = http.post("/v1/completions", json={**ROUTES["/v1/completions"], "stream": True,
                                                "stream_options": options})  # fmt: skip
    assert answer.json()["error"]["param"] == "/stream_options/continuous_usage_stats"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
def test_timings_come_with_the_usage_where_they_are_asked_for(
    server: Running, http: httpx.Client, path: str, stream: bool
) -> None:
    server.engine.cached_tokens, server.engine.preemptions = 2, 1
    if stream:
        *others, last = streamed(http, path, timings=True, n=2)
        assert not any("timings" in chunk for chunk in others)
        assert last["choices"] == []
    else:
        last = http.post(path, json={**ROUTES[path], "timings": True, "n": 2}).json()
    timings = last["timings"]
    assert last["usage"]["completion_tokens"] == 28
    assert (timings["queue_ms"], timings["prefill_ms"]) == (250.0, 500.0)
    assert 0 <= timings["decode_ms"] <= timings["total_ms"]
    assert (timings["cached_tokens"], timings["preemptions"]) == (4, 2)


def test_metrics_have_the_times_of_the_timings(server: Running, http: httpx.Client) -> None:
    def spent() -> list[float]:
        text = http.get("/metrics").text
        sums = [f"servekit_request_{name}_time_seconds_sum " for name in ("queue", "prefill")]
        return [float(text.partition(name)[2].split("\n")[0] or 0) for name in sums]

    # times of the seat are for traces alone
    server.engine.events = [Event(0, "seated", 0.0, 5.0, 0), Event(0, "chunk", 5.0, 6.0, 2)]
    before = spent()
    answer = http.post("/v1/completions", json={**ROUTES["/v1/completions"], "timings": True})
    timings = answer.json()["timings"]
    rose = [1000 * (after - earlier) for earlier, after in zip(before, spent(), strict=True)]
    assert rose == pytest.approx([timings["queue_ms"], timings["prefill_ms"]])


@pytest.mark.parametrize("path", ROUTES)
def test_without_being_asked_for_there_are_no_timings(http: httpx.Client, path: str) -> None:
    assert "timings" not in http.post(path, json=ROUTES[path]).json()
