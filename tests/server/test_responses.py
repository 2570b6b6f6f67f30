"""/v1/responses over real HTTP."""

import json
from typing import Any

import httpx
import pytest

from servekit.model.grammar import json_grammar
from tests.server.conftest import EOS, Running, says

PATH = "/v1/responses"


def answered(http: httpx.Client, given: Any = "hi", **fields: Any) -> dict[str, Any]:
    answer = http.post(PATH, json={"model": "tiny", "input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of each event, whose type is also its name."""
    found = []
    for block in [block for block in text.split("\n\n") if block]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(http: httpx.Client, given: Any = "hi", **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "input": given, "stream": True, **fields}
    answer = http.post(PATH, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


def prompt_of(server: Running) -> str:
    return bytes(server.engine.streams[-1].prompt).decode()


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return part["text"]


def test_a_response_has_a_message_a_status_and_usage(server: Running, http: httpx.Client) -> None:
    server.engine.cached_tokens = 4
    response = answered(http, instructions="be brief", temperature=0.5, metadata={"a": "b"})
    assert prompt_of(server) == "system: be brief\nuser: hi\nassistant: "
    assert text_of(response) == "Hello, world!"
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["output"][0]["role"] == "assistant"
    assert (response["temperature"], response["metadata"]) == (0.5, {"a": "b"})
    size = len(prompt_of(server))
    assert response["usage"] == {
        "input_tokens": size,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 14,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": size + 14,
    }
    assert server.engine.streams[0].sampling.temperature == 0.5


def test_input_items_are_messages_and_an_earlier_response_can_be_one(
    server: Running, http: httpx.Client
) -> None:
    first = answered(http)
    parts = [{"type": "input_text", "text": "and"}, {"type": "input_text", "text": " then?"}]
    given = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi"},
        *first["output"],
        {"type": "message", "role": "user", "content": parts},
    ]
    answer = http.post(PATH, json={"model": "tiny", "input": given})
    assert "servekit-ignored-fields" not in answer.headers
    roles = [line.split(":")[0] for line in prompt_of(server).splitlines()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]


def test_a_maximum_makes_a_response_incomplete(server: Running, http: httpx.Client) -> None:
    response = answered(http, max_output_tokens=5)
    assert (text_of(response), response["status"]) == ("Hello", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    *_, last = streamed(http, max_output_tokens=5)
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_stream_is_the_typed_events_in_their_order(
    server: Running, http: httpx.Client, size: int
) -> None:
    server.engine.script = says("Héllo 🙂 wörld")
    server.engine.tokens_per_step = size
    whole = answered(http)
    events = streamed(http)
    kinds = [event["type"] for event in events if event["type"] != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text_of(whole) == text_of(events[-1]["response"])
    assert events[-1]["response"]["usage"] == whole["usage"]
    ids = {e["item_id"] for e in events if "item_id" in e}
    assert ids == {events[-1]["response"]["output"][0]["id"]}


def test_an_error_in_a_stream_is_a_failed_response(server: Running, http: httpx.Client) -> None:
    server.engine.script = says("Hello, world! " * 10)
    server.engine.step_s = 0.02
    body = {"model": "tiny", "input": "hi", "stream": True}
    with http.stream("POST", PATH, json=body) as answer:
        text = ""
        for part in answer.iter_text():
            text += part
            if "output_text.delta" in text:
                server.engine.state = "dead"
    last = events_of(text)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "engine_died"


def test_timings_come_where_they_are_asked_for(server: Running, http: httpx.Client) -> None:
    assert answered(http, timings=True)["timings"]["queue_ms"] == 250.0
    assert streamed(http, timings=True)[-1]["response"]["timings"]["prefill_ms"] == 500.0
    assert "timings" not in answered(http)


def test_sampling_fields_beyond_the_api_are_taken(server: Running, http: httpx.Client) -> None:
    server.engine.script = lambda prompt, sampling: [*b"one two", EOS]
    assert text_of(answered(http, stop=" two", top_k=3, seed=5)) == "one"
    assert server.engine.streams[0].sampling.top_k == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "/input/0/content"),
        ({"input": [{"content": "hi"}]}, "/input/0/role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "/input/0/content/0"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "/input/0/content/0/text"),
        ({"input": [{"type": "function_call_output", "output": "1"}]}, "/input/0/type"),
        ({"input": "x" * 300}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "input"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "/text/format/name"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": False}}},
            "text.format",
        ),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ({"text": {"verbosity": "low"}}, "/text"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"messages": []}, "messages"),
        ({"input": [{"role": {}, "content": "hi"}]}, "/input/0/role"),
    ],
)
def test_what_a_response_cannot_do_is_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    answer = http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert "max_completion_tokens" not in answer.json()["error"]["message"]


def test_a_text_format_reaches_the_engine_and_is_repeated(
    server: Running, http: httpx.Client
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    given = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    answer = http.post(PATH, json={"model": "tiny", "input": "hi", "text": {"format": given}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"]["format"] == {**given, "description": None}
    assert server.engine.streams[-1].sampling.grammar == json_grammar(schema)


def test_what_has_no_effect_is_named(http: httpx.Client) -> None:
    given = [{"role": "user", "name": "me", "content": [{"type": "text", "text": "a", "x": 1}]}]
    body = {"model": "tiny", "input": given, "store": True, "user": "me", "text": {}}
    answer = http.post(PATH, json=body)
    assert answer.headers["servekit-ignored-fields"].split(", ") == [
        *("user", "store", "input.0.name", "input.0.content.0.x"),
    ]
    assert answer.json()["store"] is False
