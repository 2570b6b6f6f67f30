"""A field without effect is named where it stands, or refused; none is dropped without a word."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from servekit.model.chat import ChatTemplate
from servekit.server.ignored import MAX_HEADER, listed
from servekit.server.parse import INSTEAD
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body

CHAT = "/v1/chat/completions"
NAMES = "servekit-ignored-fields"

LEGACY = [
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whatever"),
    *("structured_outputs", "structured_output", "grammar", "json_schema", "ebnf", "my_regex"),
    *("extra_body", "nvext"),
]


def named(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return answer.headers.get(NAMES, "").split(", ")


def test_unknown_fields_are_named_at_any_depth(http: httpx.Client) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}
    body = {
        "model": "tiny",
        "messages": [{**message, "name": "me", "weight": None}],
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False, "x": None},
        "chat_template_kwargs": {"enable_thinking": False},
        "user": "me",
    }
    assert named(http.post(CHAT, json=body)) == [
        "user",
        "stream_options.include_obfuscation",
        "messages.0.name",
        "messages.0.content.0.cache_control",
        "chat_template_kwargs.enable_thinking",
    ]


def test_what_the_template_reads_is_not_named(server: Running, http: httpx.Client) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi", "name": "me"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    tokenizer = server.service.tokenizer
    usual = tokenizer.template_names
    try:
        tokenizer.template_names = usual | {"name", "enable_thinking"}
        assert named(http.post(CHAT, json=body)) == [""]
    finally:
        tokenizer.template_names = usual


def test_a_template_reads_variables_attributes_and_keys() -> None:
    template = ChatTemplate(
        "{% for one in messages %}{{ one.role }}{{ one['content'] }}{{ one.get('name') }}"
        "{% endfor %}{% if enable_thinking %}think{% endif %}",
        {},
    )
    assert template.names >= {"role", "content", "name", "enable_thinking", "messages"}
    assert "think" not in template.names


def test_tool_calls_that_the_template_would_lose_are_refused(http: httpx.Client) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}, turn]}
    error = http.post(CHAT, json=body).json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == "/messages/1/tool_calls"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("name", LEGACY)
def test_a_constraint_of_another_server_is_refused_on_every_route(
    http: httpx.Client, path: str, name: str
) -> None:
    body = chat_body() if path == CHAT else {"model": "tiny", "prompt": "hi"}
    answer = http.post(path, json={**body, name: {"a": 1}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize(("name", "instead"), INSTEAD.items())
def test_a_constraint_of_another_server_is_told_what_it_is_called_here(
    http: httpx.Client, name: str, instead: str
) -> None:
    error = http.post(CHAT, json=chat_body(**{name: {"a": 1}})).json()["error"]
    assert f"send {instead} " in error["message"]


def strict(http: httpx.Client, **fields: Any) -> httpx.Response:
    headers = {"servekit-unknown-fields": "refuse"}
    return http.post(CHAT, json=chat_body(**fields), headers=headers)


def test_a_strict_request_is_refused_for_any_unknown_field(http: httpx.Client) -> None:
    refused = strict(http, stream=True, user="me", stream_options={"x": 1})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert "user, stream_options.x" in error["message"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "user")
    assert strict(http, seed=1).status_code == 200


def test_a_strict_deployment_refuses_and_a_request_may_ask_for_names(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(FakeEngine(), tiny_config(server={"unknown_fields": "refuse"}))
    with server.client() as http:
        body = chat_body(user="me")
        assert http.post(CHAT, json=body).json()["error"]["param"] == "user"
        asked = http.post(CHAT, json=body, headers={"servekit-unknown-fields": "name"})
        assert named(asked) == ["user"]


def test_an_unknown_word_for_strictness_is_refused(http: httpx.Client) -> None:
    headers = {"servekit-unknown-fields": "please"}
    error = http.post(CHAT, json=chat_body(), headers=headers).json()["error"]
    assert "name or refuse" in error["message"]


def test_the_header_is_capped_and_says_how_many_more(http: httpx.Client) -> None:
    fields = {f"field_{number}": 1 for number in range(500)}
    line = http.post(CHAT, json=chat_body(**fields)).headers[NAMES]
    assert len(line) < MAX_HEADER + 20
    said = line.split(", ")
    assert said[-1] == f"and {500 - len(said) + 1} more"
    assert said[:-1] == list(fields)[: len(said) - 1]


def test_a_name_cannot_break_out_of_the_header() -> None:
    assert listed(["a\r\nset-cookie: x", "é", "b" * 100]) == f"a??set-cookie??x, ?, {'b' * 64}"
