"""What is too much is refused before work goes into it."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from servekit.errors import ContextTooLong
from servekit.server.limits import MAX_MESSAGES, MAX_PARTS, Room
from tests.server.conftest import ByteTokenizer, Running, chat_body, eventually, says
from tests.server.test_errors import error_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PART = {"type": "text", "text": "x"}
MESSAGE = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * 2000}]}, "messages"),
        (COMPLETIONS, {"prompt": "x" * 2000}, "prompt"),
        (COMPLETIONS, {"prompt": ["x", "x" * 2000]}, "prompt"),
        (COMPLETIONS, {"prompt": [1] * 2000}, "prompt"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    http: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    fields: dict[str, Any],
    param: str,
) -> None:
    seen: list[int] = []

    def encode(self: ByteTokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        seen.append(len(text))
        return [1] * len(text)

    monkeypatch.setattr(ByteTokenizer, "encode", encode)
    error = error_of(http.post(path, json={"model": "tiny", **fields}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert error["max_model_len"] == 256
    assert all(length < 2000 for length in seen)


def test_who_only_counts_tokens_may_count_more(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"prompt": "x" * 2000}).json()["count"] == 2001


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([MESSAGE] * (MAX_MESSAGES + 1), "messages"),
        ([{"role": "user", "content": [PART] * (MAX_PARTS + 1)}], "/messages/0/content"),
    ],
)
def test_too_many_of_a_thing_are_refused(
    http: httpx.Client, messages: list[Any], param: str
) -> None:
    error = error_of(http.post(CHAT, json={"model": "tiny", "messages": messages}), 400)
    assert error["param"] == param


def test_the_bound_is_exact() -> None:
    room = Room(max_model_len=10, max_servable_tokens=100)
    room.check_text(40, 4, "prompt")
    room.check_text(10**9, None, "prompt")
    with pytest.raises(ContextTooLong) as refused:
        room.check_text(41, 4, "prompt")
    assert "41 characters are at least 11 tokens" in refused.value.message


def test_a_template_that_takes_long_stops_no_other_stream(
    server: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = ByteTokenizer.render_chat

    def slow(self: ByteTokenizer, messages: Any, *words: Any, **variables: Any) -> str:
        if len(messages) > 1000:
            time.sleep(2.0)
        return render(self, messages, *words, **variables)

    monkeypatch.setattr(ByteTokenizer, "render_chat", slow)
    server.engine.script, server.engine.step_s = says("x" * 20), 0.01

    async def both() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            ended: list[str] = []

            async def ask(name: str, **body: Any) -> None:
                await client.post(CHAT, json=chat_body(stream=True) | body)
                ended.append(name)

            many = asyncio.create_task(ask("many", messages=[MESSAGE] * 2000))
            await asyncio.sleep(0.3)
            await ask("few")
            await many
            return ended

    assert asyncio.run(both()) == ["few", "many"]
    eventually(lambda: not server.service.generations)
