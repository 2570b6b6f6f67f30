"""What requests used is counted by tenant and written down before a client hears the end."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from servekit.errors import NotReady
from servekit.telemetry.ledger import Locked
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, chunks_of, eventually, says
from tests.server.keyed import bearer, key_file, line
from tests.server.test_launch import Child
from tests.telemetry.test_ledger import instead

CHAT = "/v1/chat/completions"
Entry = dict[str, Any]


class Metered:
    """A server with a ledger and two keys of one tenant."""

    def __init__(self, server: Running, ledger: Path) -> None:
        self.server, self.engine, self.ledger = server, server.engine, ledger
        self.http = server.client(headers=bearer("sk"))

    def entries(self) -> list[Entry]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    def tokens(self) -> dict[tuple[str, str, str], float]:
        found = re.findall(
            r'tenant_tokens_total\{key="(.*)",tenant="(.*)",type="(.*)"\} (\S+)',
            self.http.get("/metrics").text,
        )
        return {(tenant, key, kind): float(count) for key, tenant, kind, count in found}


@pytest.fixture
def metered(start_server: Callable[..., Running], tmp_path: Path) -> Metered:
    both = {"access": ["inference", "admin"]}
    keys = key_file(tmp_path, line("sk", id="one", **both), line("sk-2", id="two"))
    ledger = tmp_path / "ledger.jsonl"
    config = tiny_config(server={"api_keys": keys}, telemetry={"ledger": str(ledger)})
    return Metered(start_server(FakeEngine(cached_tokens=16), config), ledger)


@pytest.mark.parametrize("stream", [True, False])
def test_a_finished_request_has_one_line(metered: Metered, stream: bool) -> None:
    body = chat_body(stream=stream, n=2, stream_options={"include_usage": True} if stream else None)
    answer = metered.http.post(CHAT, json=body)
    last = json.loads(chunks_of(answer.text)[-2]) if stream else answer.json()
    (entry,) = metered.entries()
    came = datetime.fromisoformat(entry.pop("time"))
    assert abs(came.timestamp() - last["created"]) < 60
    assert 0 < entry.pop("ttft_s") <= entry.pop("total_s") < 60
    usage = last["usage"]
    assert entry == {
        "id": last["id"],
        "tenant": "acme",
        "key": "one",
        "model": "tiny",
        "operation": "chat",
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "queue_s": 0.25,
        "finish_reasons": ["stop", "stop"],
        "error": None,
    }
    assert (usage["completion_tokens"], entry["cached_tokens"]) == (28, 16)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("fields", [{}, {"n": 4}, {"stop": "wor"}, {"max_tokens": 3, "n": 2}])
def test_usage_streamed_is_usage_whole_is_what_the_ledger_and_the_counters_say(
    metered: Metered, path: str, fields: dict[str, Any]
) -> None:
    body = {**(chat_body() if path == CHAT else {"model": "tiny", "prompt": "hi"}), **fields}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = metered.http.post(path, json=body | options)
    usages = [json.loads(chunks_of(streamed.text)[-2])["usage"]]
    usages.append(metered.http.post(path, json=body).json()["usage"])
    assert usages[0] == usages[1]
    for usage, entry in zip(usages, metered.entries(), strict=True):
        assert entry["prompt_tokens"] == usage["prompt_tokens"]
        assert entry["completion_tokens"] == usage["completion_tokens"]
        assert entry["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    counted = {kind: count for (_, _, kind), count in metered.tokens().items() if count}
    assert counted == {
        "prompt": 2 * usages[0]["prompt_tokens"],
        "cached": 2 * usages[0]["prompt_tokens_details"]["cached_tokens"],
        "completion": 2 * usages[0]["completion_tokens"],
    }


def test_tokens_are_counted_by_tenant_and_key(metered: Metered) -> None:
    for key in ("sk", "sk-2", "sk-2"):
        assert metered.http.post(CHAT, json=chat_body(), headers=bearer(key)).status_code == 200
    assert metered.tokens() == {
        ("acme", "one", "prompt"): 20,
        ("acme", "one", "cached"): 16,
        ("acme", "one", "completion"): 14,
        ("acme", "two", "prompt"): 40,
        ("acme", "two", "cached"): 32,
        ("acme", "two", "completion"): 28,
    }


def test_what_tenants_used_adds_up_to_what_was_served(metered: Metered) -> None:
    metered.http.post(CHAT, json=chat_body(n=3))
    metered.engine.refusal = ("full", "queue_full", 1.0)
    metered.http.post(CHAT, json=chat_body())
    text = metered.http.get("/metrics").text
    names = {"prompt": "prompt", "cached": "prompt_cached", "completion": "generation"}
    for kind, name in names.items():
        (total,) = re.findall(rf"^servekit_{name}_tokens_total (\S+)", text, re.MULTILINE)
        assert metered.tokens()["acme", "one", kind] == float(total) > 0, kind


def test_strangers_make_no_time_series(http: httpx.Client) -> None:
    for number in range(5):
        http.post(CHAT, json=chat_body(), headers=bearer(f"sk-{number}"))
    lines = re.findall(r"tenant_tokens_total\{(.*)\}", http.get("/metrics").text)
    assert sorted(lines) == [
        f'key="",tenant="",type="{kind}"' for kind in ("cached", "completion", "prompt")
    ]


def test_a_request_that_its_client_leaves_has_a_line(metered: Metered) -> None:
    metered.engine.script, metered.engine.step_s = says("x" * 200), 0.01
    with metered.http.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)
    eventually(metered.entries)
    (entry,) = metered.entries()
    assert (entry["error"], entry["finish_reasons"]) == ("client_disconnected", [None])
    assert 0 < entry["completion_tokens"] < 200
    assert metered.tokens()["acme", "one", "completion"] == entry["completion_tokens"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_fails_has_its_line_before_it_is_told(
    metered: Metered, stream: bool
) -> None:
    metered.engine.script, metered.engine.step_s = says("x" * 200), 0.01

    def end_soon() -> None:
        metered.server.service.end_all(NotReady("time is up"), "drain_deadline")

    metered.server.loop.call_soon_threadsafe(metered.server.loop.call_later, 0.2, end_soon)
    assert "time is up" in metered.http.post(CHAT, json=chat_body(stream=stream)).text
    (entry,) = metered.entries()
    assert (entry["error"], entry["finish_reasons"]) == ("drain_deadline", [None])


def test_what_the_engine_does_not_let_in_has_no_line(metered: Metered) -> None:
    metered.engine.refusal = ("full", "queue_full", 1.0)
    assert metered.http.post(CHAT, json=chat_body()).status_code == 429
    metered.engine.refusal = None
    assert metered.http.post(CHAT, json=chat_body(top_p=9)).status_code == 400
    metered.http.post(CHAT, json=chat_body())
    assert [entry["error"] for entry in metered.entries()] == [None]


@pytest.mark.parametrize("stream", [True, False])
def test_nobody_hears_an_end_that_cannot_be_written_down(
    metered: Metered, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("servekit.telemetry.ledger.os.write", instead(metered.ledger, full))
    answer = metered.http.post(CHAT, json=chat_body(stream=stream))
    monkeypatch.undo()
    if stream:
        assert '"finish_reason":"stop"' not in answer.text
        *_, error, done = chunks_of(answer.text)
        assert (json.loads(error)["error"]["code"], done) == ("ledger_unwritable", "[DONE]")
    else:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert metered.http.post(CHAT, json=chat_body(stream=stream)).status_code == 200
    assert len(metered.entries()) == 1


def test_a_ledger_that_is_slow_holds_up_only_who_ends(metered: Metered) -> None:
    """Somebody else holds the file: ends wait for it, streams that run do not."""
    file = os.open(metered.ledger, os.O_RDWR)
    metered.engine.script, metered.engine.step_s = says("x" * 200), 0.005
    ended: list[float] = []

    def end_one() -> None:
        body = chat_body(max_tokens=1)
        ended.append(
            metered.server.client(headers=bearer("sk-2")).post(CHAT, json=body).status_code
        )

    ending = threading.Thread(target=end_one)
    with Locked(file), metered.http.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        ending.start()
        for _ in range(200):
            next(lines)
        assert ended == []
    ending.join(10)
    os.close(file)
    assert ended == [200]


def ask_until_it_dies(url: str, heard: list[str], number: int) -> None:
    """Ids of answers whose end was heard, streamed or not."""
    with suppress(httpx.HTTPError), httpx.Client(base_url=url, timeout=20) as http:
        while True:
            if number % 4 == 0:
                heard.append(http.post(CHAT, json=chat_body()).json()["id"])
                continue
            with http.stream("POST", CHAT, json=chat_body(stream=True, n=1 + number % 3)) as answer:
                ends = 0
                for text in answer.iter_lines():
                    if text.startswith("data: {"):
                        chunk = json.loads(text.removeprefix("data: "))
                        ends += bool(chunk["choices"][0].get("finish_reason"))
                        if ends == 1 + number % 3:
                            heard.append(chunk["id"])
                            break


def test_killed_under_load_every_end_that_was_heard_has_its_line(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    heard: list[str] = []
    groups = {"telemetry": {"ledger": str(ledger)}}
    child = Child("short", 0, 5.0, **groups)
    url = child.ready()
    clients = [
        threading.Thread(target=ask_until_it_dies, args=(url, heard, number))
        for number in range(24)
    ]
    for client in clients:
        client.start()
    eventually(lambda: len(heard) > 100, seconds=60)
    child.process.send_signal(signal.SIGKILL)
    child.end()
    for client in clients:
        client.join(30)
    whole, _, torn = ledger.read_text().rpartition("\n")
    lines = [json.loads(one) for one in whole.split("\n")]
    assert torn == "" or not torn.endswith("}"), "a line that is whole has its newline"
    assert set(heard) <= {entry["id"] for entry in lines}
    assert len({entry["id"] for entry in lines}) == len(lines)
    assert any(entry["finish_reasons"] == ["stop"] * 3 for entry in lines)


def test_lines_are_on_the_disk_when_a_server_ends(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    child = Child("serves", 0, 5.0, telemetry={"ledger": str(ledger)})
    httpx.post(f"{child.ready()}{CHAT}", json=chat_body(), timeout=20)
    child.process.send_signal(signal.SIGTERM)
    assert child.end() == 0
    assert len(ledger.read_text().splitlines()) == 1


def test_a_ledger_that_cannot_be_written_is_refused_at_the_start() -> None:
    child = Child("serves", 0, 5.0, telemetry={"ledger": "/no/such/folder/ledger"})
    assert child.end(20) == 2
    assert "telemetry.ledger: /no/such/folder/ledger cannot be written" in child.said
    assert "Traceback" not in child.said
