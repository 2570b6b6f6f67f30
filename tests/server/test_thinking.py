"""What a model thinks aloud is part of what it says: nothing sorts it out, so nothing is lost."""

import json

import httpx
import pytest

from tests.server.conftest import Running, chat_body, chunks_of, says

THOUGHTS = {
    "with an end": "<think>two and two</think>four",
    "without its beginning": "two and two</think>four",
    "cut off": "<think>two and",
    "none": "four",
}


@pytest.mark.parametrize("said", THOUGHTS.values(), ids=THOUGHTS)
def test_thoughts_are_content_streamed_and_not(
    server: Running, http: httpx.Client, said: str
) -> None:
    server.engine.script = says(said)
    body = chat_body(max_tokens=100)
    message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"] == said
    assert not message.get("reasoning_content")
    streamed = http.post("/v1/chat/completions", json={**body, "stream": True})
    deltas = [
        choice["delta"]
        for chunk in chunks_of(streamed.text)[:-1]
        for choice in json.loads(chunk)["choices"]
    ]
    assert "".join(delta.get("content") or "" for delta in deltas) == said
    assert not any(key.startswith("reasoning") for delta in deltas for key in delta)
