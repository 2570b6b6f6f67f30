"""/v1/chat/completions over real HTTP."""

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import EOS, Running, chat_body, chunks_of, says


def streamed(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    answer = http.post("/v1/chat/completions", json=chat_body(stream=True, **fields))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = chunks_of(answer.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def test_an_answer_has_a_message_a_reason_and_usage(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=chat_body()).json()
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == {
        "prompt_tokens": len("user: hi\nassistant: "),
        "completion_tokens": 14,
        "total_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_is_role_then_text_then_one_finish_then_usage(http: httpx.Client) -> None:
    chunks = streamed(http, stream_options={"include_usage": True})
    first, *middle, finish, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"]["content"] for c in middle) == "Hello, world!"
    assert all(c["choices"][0]["finish_reason"] is None for c in [first, *middle])
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 14
    assert all(c["usage"] is None for c in chunks[:-1])
    assert len({c["id"] for c in chunks}) == 1


def test_without_include_usage_no_chunk_has_usage(http: httpx.Client) -> None:
    assert all("usage" not in chunk for chunk in streamed(http))
