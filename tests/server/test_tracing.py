"""A request over HTTP, as a collector sees it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from servekit.engine.messages import Event
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, eventually
from tests.telemetry.collector import Collector, attributes, collecting

CHAT = "/v1/chat/completions"
SECRET = "the password is swordfish"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced_server(start_server: Callable[..., Running], collector: Collector) -> Running:
    return start_server(FakeEngine(), tiny_config(telemetry={"otlp_endpoint": collector.url}))


@pytest.fixture
def traced(traced_server: Running, collector: Collector) -> Running:
    for name, value in vars(FakeEngine()).items():
        setattr(traced_server.engine, name, value)
    collector.bodies.clear()
    return traced_server


def asked(server: Running, body: dict[str, Any], **headers: str) -> Any:
    with server.client() as client:
        return client.post(CHAT, json=body, headers=headers)


def spans(collector: Collector) -> list[Any]:
    """Those of one request: all of them arrive together."""
    eventually(lambda: collector.spans, 20.0)
    return collector.spans


def lived(*kinds: tuple[str, float, float, int]) -> list[Event]:
    """Times are milliseconds before now."""
    now = time.monotonic()
    return [
        Event(0, kind, now - start / 1000, now - end / 1000, tokens)  # type: ignore[arg-type]
        for kind, start, end, tokens in kinds
    ]


def test_a_request_is_a_span_with_queue_prefill_and_decode(
    traced: Running, collector: Collector
) -> None:
    traced.engine.cached_tokens = 4
    traced.engine.events = lived(("seated", 50, 40, 4), ("chunk", 40, 20, 16), ("chunk", 20, 5, 10))
    answer = asked(traced, chat_body(SECRET, temperature=0.5, max_tokens=20))
    assert answer.status_code == 200
    root, *children = spans(collector)
    assert root.name == "chat tiny"
    assert [child.name for child in children] == ["queue", "prefill", "prefill", "decode"]
    assert [attributes(child).get("servekit.tokens") for child in children] == [None, 16, 10, None]
    found = attributes(root)
    usage = answer.json()["usage"]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "servekit",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": False,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 4,
        "http.response.status_code": 200,
        "url.path": CHAT,
    }
    assert found | expected == found
    assert found["gen_ai.response.time_to_first_chunk"] > 0
    assert "error.type" not in found
    decode = children[-1]
    assert decode.end_time_unix_nano <= root.end_time_unix_nano


def test_no_text_of_prompt_or_answer_is_in_a_trace(traced: Running, collector: Collector) -> None:
    answer = asked(traced, chat_body(SECRET))
    said = answer.json()["choices"][0]["message"]["content"]
    spans(collector)
    sent = b"".join(body for _, body in collector.bodies)
    assert said.encode() not in sent
    assert SECRET.encode() not in sent


def test_the_trace_of_the_caller_goes_on_and_its_id_is_in_the_answer(
    traced: Running, collector: Collector
) -> None:
    answer = asked(traced, chat_body(), traceparent=CALLER)
    root = spans(collector)[0]
    assert root.trace_id.hex() == CALLER.split("-")[1]
    assert root.parent_span_id.hex() == CALLER.split("-")[2]
    assert answer.headers["traceresponse"] == f"{CALLER[:36]}{root.span_id.hex()}-01"


def test_a_caller_that_keeps_no_trace_gets_none_but_its_id(
    traced: Running, collector: Collector
) -> None:
    unsampled = CALLER[:-1] + "0"
    assert (
        asked(traced, chat_body(), traceparent=unsampled).headers["traceresponse"].endswith("-00")
    )
    asked(traced, chat_body(), traceparent=CALLER)
    assert len([span for span in spans(collector) if span.kind == 2]) == 1


def test_a_stream_is_traced_to_its_end(traced: Running, collector: Collector) -> None:
    traced.engine.events = lived(("seated", 9, 8, 0), ("chunk", 8, 1, 5))
    answer = asked(traced, chat_body(stream=True))
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "traceresponse" in answer.headers
    root, *children = spans(collector)
    assert attributes(root)["gen_ai.request.stream"] is True
    assert children[-1].name == "decode"
    assert attributes(children[-1])["gen_ai.usage.output_tokens"] == 14


def test_a_preemption_is_a_span_between_two_seats(traced: Running, collector: Collector) -> None:
    traced.engine.events = lived(
        ("seated", 90, 80, 0),
        ("chunk", 80, 70, 5),
        ("preempted", 90, 60, 0),
        ("seated", 90, 30, 0),
        ("chunk", 30, 20, 9),
    )
    asked(traced, chat_body())
    children = spans(collector)[1:]
    names = ["queue", "prefill", "preempted", "prefill", "decode"]
    assert [child.name for child in children] == names
    away = children[2].end_time_unix_nano - children[2].start_time_unix_nano
    assert away == pytest.approx(30e6, abs=1e4)


def test_each_of_several_answers_has_its_own_parts(traced: Running, collector: Collector) -> None:
    traced.engine.events = lived(("seated", 9, 8, 0))
    asked(traced, chat_body(n=2))
    root, *children = spans(collector)
    assert attributes(root)["gen_ai.request.choice.count"] == 2
    choices = [attributes(child)["servekit.choice"] for child in children]
    assert choices == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (chat_body(temperature=-1.0), 400, "invalid_request"),
        (chat_body() | {"model": "other"}, 404, "model_not_found"),
    ],
)
def test_a_refused_request_is_a_span_with_the_code_of_its_error(
    traced: Running, collector: Collector, body: dict[str, Any], status: int, code: str
) -> None:
    answer = asked(traced, body)
    assert answer.status_code == status
    assert "traceresponse" in answer.headers
    (root,) = spans(collector)
    assert root.name == f"POST {CHAT}"
    assert attributes(root)["error.type"] == code
    assert attributes(root)["http.response.status_code"] == status


def test_a_refusal_of_the_scheduler_is_told_with_its_wait(
    traced: Running, collector: Collector
) -> None:
    traced.engine.refusal = ("the queue is full", "queue_full", 3.0)
    assert asked(traced, chat_body()).status_code == 429
    root, waited = spans(collector)
    assert attributes(root)["error.type"] == "queue_full"
    assert waited.name == "queue"


def test_requests_are_answered_while_the_collector_is_silent(
    traced: Running, collector: Collector
) -> None:
    collector.answering.clear()
    try:
        assert all(asked(traced, chat_body()).status_code == 200 for _ in range(20))
    finally:
        collector.answering.set()


def test_traces_are_counted_among_the_metrics(traced: Running, collector: Collector) -> None:
    asked(traced, chat_body())
    spans(collector)

    def counted() -> bool:
        with traced.client() as client:
            text = client.get("/metrics").text
        return 'servekit_traced_requests_total{outcome="sent"} 0.0' not in text

    eventually(counted)


def test_without_a_collector_nothing_is_traced(server: Running) -> None:
    assert "traceresponse" not in asked(server, chat_body(), traceparent=CALLER).headers
