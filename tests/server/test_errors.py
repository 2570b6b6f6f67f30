"""Every refusal: its status, its one shape, and what it points at."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from servekit.server.parse import json_pointer
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body

CHAT = "/v1/chat/completions"


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "route_not_found"),
        ("GET", "/v1/chat/completions/", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/livez", 405, "method_not_allowed"),
    ],
)
def test_a_wrong_route_or_method_has_the_one_shape(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, path)
    assert error_of(answer, status)["code"] == code
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ("{", ""),
        ("", ""),
        ("[]", ""),
        ("nonsense", ""),
        ('{"model": "tiny"}', "/messages"),
        ('{"model": 3, "messages": []}', "/model"),
        ('{"model": "tiny", "messages": [3]}', "/messages/0"),
        ('{"model": "tiny", "messages": [{"role": 3}]}', "/messages/0/role"),
        ('{"model": "tiny", "messages": [{"role": "user"}]}', "/messages/0/content"),
        ('{"model": "tiny", "messages": [], "stop": ["a", 3]}', "/stop/1"),
        ('{"model": "tiny", "messages": [], "max_tokens": "9"}', "/max_tokens"),
        ('{"model": "tiny", "messages": [], "stream_options": {"include_usage": 1}, '
         '"stream": true}', "/stream_options/include_usage"),
        ("[" * 100_000, ""),
    ],
)  # fmt: skip
def test_a_body_of_the_wrong_form_is_pointed_into(
    http: httpx.Client, body: str, pointer: str
) -> None:
    answer = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert error_of(answer, 400)["param"] == pointer


@pytest.mark.parametrize(
    ("path", "pointer"),
    [("", ""), (".a", "/a"), (".a[0].b", "/a/0/b"), (".a[...]", "/a"), (".a[2][3]", "/a/2/3")],
)
def test_a_path_becomes_a_json_pointer(path: str, pointer: str) -> None:
    assert json_pointer(path) == pointer


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 2000}, "stop"),
        ({"stop_token_ids": [259]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 200}, "stop_token_ids"),
        ({"logit_bias": {"259": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ],
)
def test_a_value_out_of_its_limits_is_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = error_of(http.post(CHAT, json={**chat_body(), **fields}), 400)
    assert error["param"] in (param, f"/{param}")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": "", "add_special_tokens": False}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_what_completions_refuse(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "prompt": "hi", **fields}
    assert error_of(http.post("/v1/completions", json=body), 400)["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"guided_json": {"type": "object"}},
        {"guided_regex": "a+"},
        {"structured_outputs": {"regex": "a"}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "a"}},
        {"prompt_logprobs": 1},
        {"function_call": "auto"},
        {"echo": True},
    ],
)
def test_a_field_that_would_shape_the_answer_is_refused_not_dropped(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    error = error_of(http.post(CHAT, json=chat_body(**fields)), 400)
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"modalities": ["text"]},
        {"guided_json": None},
    ],
)
def test_such_a_field_may_ask_for_what_is_done_anyway(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    answer = http.post(CHAT, json=chat_body(**fields))
    assert answer.status_code == 200
    assert "servekit-ignored-fields" not in answer.headers


@pytest.mark.parametrize("stream", [True, False])
def test_fields_without_effect_are_named_in_a_header(http: httpx.Client, stream: bool) -> None:
    body = chat_body(stream=stream, user="me", metadata={}, **{"no\nsense": 1})
    answer = http.post(CHAT, json=body)
    assert answer.headers["servekit-ignored-fields"] == "user, metadata, no?sense"


def test_an_image_is_refused_where_it_stands(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": parts}]}
    assert error_of(http.post(CHAT, json=body), 400)["param"] == "/messages/0/content/1"


def test_a_template_refuses_with_its_own_words(http: httpx.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "tool", "content": "x"}]}
    error = error_of(http.post(CHAT, json=body), 400)
    assert error["message"] == "this template knows no tools"


def test_another_content_type_is_refused(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, data={"a": "b"}), 415)
    assert "application/json" in error["message"]


def test_an_unknown_model_is_not_answered_and_the_served_one_is_named(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json={**chat_body(), "model": "gpt"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize("sized", [True, False])
def test_a_body_beyond_the_limit_is_refused(http: httpx.Client, sized: bool) -> None:
    body = b" " * (4 * 1024 * 1024 + 1)
    headers = {"content-type": "application/json"}
    answer = http.post(CHAT, content=body if sized else iter([body]), headers=headers)
    assert error_of(answer, 413)["code"] == "body_too_large"


def test_too_long_is_said_with_both_numbers(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json=chat_body("x" * 300)), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert (error["prompt_tokens"], error["max_model_len"]) == (318, 256)
    assert error["max_servable_tokens"] == 1024


def test_an_explicit_maximum_is_never_cut(server: Running, http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json=chat_body(max_tokens=237)), 400)
    assert (error["prompt_tokens"], error["max_tokens"]) == (20, 237)
    assert http.post(CHAT, json=chat_body(max_tokens=236)).status_code == 200


def test_an_unexpected_fault_gives_an_id_and_no_trace(
    server: Running, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(prompt: list[int], sampling: object) -> list[int]:
        raise ZeroDivisionError("secret")

    server.engine.script = broken
    error = error_of(http.post(CHAT, json=chat_body("private")), 500)
    assert error["error_id"] in caplog.text
    assert "secret" not in str(error)
    assert "private" not in caplog.text


def test_more_answers_than_seats_and_queue_hold_can_never_be_had(
    start_server: Callable[..., Running],
) -> None:
    small = {"max_num_seqs": 1, "max_num_waiting": 1}
    server = start_server(FakeEngine(), tiny_config(scheduler=small))
    with server.client() as http:
        assert error_of(http.post(CHAT, json=chat_body(n=3)), 400)["param"] == "n"
        assert http.post(CHAT, json=chat_body(n=2)).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "retry_after_s", "header"),
    [("slo_unattainable", 7.2, "8"), ("queue_full", 0.3, "1"), ("queue_full", None, "1")],
)
def test_what_the_scheduler_refuses_is_429_with_a_time_to_return(
    server: Running,
    http: httpx.Client,
    code: str,
    retry_after_s: float | None,
    header: str,
    stream: bool,
) -> None:
    server.engine.refusal = ("too late", code, retry_after_s)
    answer = http.post(CHAT, json=chat_body(stream=stream, n=2))
    assert error_of(answer, 429)["code"] == code
    assert answer.headers["retry-after"] == header
