"""A stream that has nothing to say for long says that it is there."""

import asyncio
from collections.abc import Callable, Iterator

import httpx
import pytest

from servekit.server.idle import Idle
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, says
from tests.server.test_errors import error_of

CHAT = "/v1/chat/completions"
COMMENT = ": keep-alive"


@pytest.fixture
def server(start_server: Callable[..., Running]) -> Running:
    return start_server(FakeEngine(), tiny_config(server={"keepalive_s": 0.1}))


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def lines_of(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200
    return [line for line in answer.text.split("\n") if line]


def test_between_tokens_that_are_slow_to_come(server: Running, http: httpx.Client) -> None:
    server.engine.script, server.engine.step_s = says("ab", end=None), 0.25
    lines = lines_of(http.post(CHAT, json=chat_body(stream=True)))
    first, second = (
        next(i for i, line in enumerate(lines) if f'"content":"{token}"' in line) for token in "ab"
    )
    assert COMMENT in lines[first:second]
    assert lines[-1] == "data: [DONE]"


def test_also_before_the_first_token_behind_the_role(server: Running, http: httpx.Client) -> None:
    server.engine.script, server.engine.step_s = says("a", end=None), 0.35
    lines = lines_of(http.post(CHAT, json=chat_body(stream=True)))
    assert '"role":"assistant"' in lines[0]
    assert lines[1] == COMMENT


def test_where_a_stream_has_no_opening_the_comment_is_the_first(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script, server.engine.step_s = says("a", end=None), 0.35
    body = {"model": "tiny", "prompt": "hi", "stream": True}
    assert lines_of(http.post("/v1/completions", json=body))[0] == COMMENT


def test_a_stream_that_goes_on_has_none(server: Running, http: httpx.Client) -> None:
    server.engine.script, server.engine.step_s = says("x" * 30), 0.01
    assert COMMENT not in lines_of(http.post(CHAT, json=chat_body(stream=True)))


def test_a_refusal_keeps_its_status(server: Running, http: httpx.Client) -> None:
    server.engine.refusal = ("too late", "queue_full", 1.0)
    answer = http.post(CHAT, json=chat_body(stream=True))
    assert error_of(answer, 429)["code"] == "queue_full"


def test_what_was_noted_lately_is_waited_for_from_then() -> None:
    async def count() -> list[int]:
        woken: list[float] = []
        loop = asyncio.get_running_loop()
        began = loop.time()
        idle = Idle(0.1, lambda: woken.append(loop.time() - began))
        for _ in range(10):
            await asyncio.sleep(0.03)
            idle.note()
        noted = len(woken)
        await asyncio.sleep(0.25)
        idle.stop()
        after = len(woken)
        await asyncio.sleep(0.15)
        return [noted, after > noted, len(woken) - after]

    assert asyncio.run(count()) == [0, True, 0]
