"""x-request-timeout-ms: an answer that is not done by then is worth nothing, so work on it ends."""

import asyncio
import json

import httpx
import pytest

from servekit.server.deadline import deadline
from tests.server.conftest import Running, chat_body, eventually, says
from tests.server.test_errors import error_of

CHAT = "/v1/chat/completions"
HEADER = "x-request-timeout-ms"


@pytest.mark.parametrize(
    "value", ["0", "-1", "1.5", "soon", "", "1e3", "86400001", "9" * 400, "²", "5 0"]
)
def test_a_deadline_that_is_no_time_is_refused_by_name(http: httpx.Client, value: str) -> None:
    headers = {HEADER: value.encode()}
    error = error_of(http.post(CHAT, json=chat_body(), headers=headers), 400)
    assert error["param"] == HEADER
    assert "86400000" in error["message"]


def test_blanks_around_a_deadline_are_no_part_of_it() -> None:
    assert deadline(" 5000\t", arrived=1.0) == 6.0


@pytest.mark.parametrize("stream", [False, True])
def test_who_is_done_in_time_notices_nothing(http: httpx.Client, stream: bool) -> None:
    answer = http.post(CHAT, json=chat_body(stream=stream), headers={HEADER: "60000"})
    assert answer.status_code == 200
    assert "error" not in answer.text


@pytest.mark.parametrize("n", [1, 3])
def test_an_answer_that_is_not_done_by_then_is_504_and_its_work_ends(
    server: Running, http: httpx.Client, n: int
) -> None:
    server.engine.script, server.engine.step_s = says("x" * 200), 0.02
    answer = http.post(CHAT, json=chat_body(n=n), headers={HEADER: "150"})
    error = error_of(answer, 504)
    assert (error["code"], error["type"]) == ("deadline_exceeded", "timeout_error")
    assert "150 ms" in error["message"]
    eventually(lambda: server.engine.aborted == n)


def test_a_stream_that_has_begun_ends_with_an_error_and_done(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script, server.engine.step_s = says("x" * 200), 0.02
    with http.stream("POST", CHAT, json=chat_body(stream=True), headers={HEADER: "300"}) as answer:
        assert answer.status_code == 200
        *_, error, done = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert json.loads(error)["error"]["code"] == "deadline_exceeded"
    assert done == "[DONE]"
    eventually(lambda: server.engine.aborted == 1)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_stream_that_has_not_begun_is_504_too(
    server: Running, http: httpx.Client, path: str
) -> None:
    server.engine.step_s = 5.0
    body = {"model": "tiny", "prompt": "hi"} if path != CHAT else chat_body()
    answer = http.post(path, json={**body, "stream": True}, headers={HEADER: "500"})
    assert error_of(answer, 504)["code"] == "deadline_exceeded"
    eventually(lambda: server.engine.aborted == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_waits_for_others_is_waited_for_until_then(
    server: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(server.service.grammars, "check", never)
    body = chat_body(regex="[ab]", stream=stream)
    error = error_of(http.post(CHAT, json=body, headers={HEADER: "100"}), 504)
    assert error["code"] == "deadline_exceeded"
    assert not server.engine.streams


def test_the_reason_is_counted(server: Running, http: httpx.Client) -> None:
    server.engine.step_s = 5.0
    http.post(CHAT, json=chat_body(), headers={HEADER: "50"})
    name = 'servekit_requests_aborted_total{reason="deadline_exceeded"}'
    assert name in http.get("/metrics").text
