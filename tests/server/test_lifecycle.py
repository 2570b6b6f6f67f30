"""Loading, ready, draining, failed: what each route says in each."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from servekit.errors import NotReady, SourceError
from servekit.server.lifecycle import Lifecycle, Phase
from tests.conftest import tiny_config
from tests.server.conftest import Running, chat_body, eventually, says
from tests.server.test_grammars import PRIMES

CHAT = "/v1/chat/completions"


@pytest.fixture
def in_state(server: Running) -> Iterator[Callable[[str], None]]:
    def change(name: str) -> None:
        server.service.lifecycle = Lifecycle()
        if name == "loading":
            server.service.lifecycle.progress("fetch", 12_000_000, 98_000_000)
        elif name in ("leaving", "draining"):
            server.service.lifecycle.become_ready()
            server.service.lifecycle.state = name  # type: ignore[assignment]
        elif name == "failed":
            server.service.lifecycle.fail(SourceError("no such file"))
        else:
            server.service.lifecycle.become_ready()
            server.engine.state = name

    yield change
    change("ready")


@pytest.mark.parametrize(
    ("state", "livez", "readyz", "startupz", "models"),
    [
        ("loading", 200, 503, 503, 503),
        ("ready", 200, 200, 200, 200),
        ("leaving", 200, 503, 200, 200),
        ("draining", 200, 503, 200, 503),
        ("failed", 200, 503, 503, 503),
        ("dead", 503, 503, 200, 503),
    ],
)
def test_every_state_has_its_answers(
    http: httpx.Client,
    in_state: Callable[[str], None],
    state: str,
    livez: int,
    readyz: int,
    startupz: int,
    models: int,
) -> None:
    in_state(state)
    paths = ("/livez", "/readyz", "/startupz", "/v1/models")
    assert [http.get(path).status_code for path in paths] == [livez, readyz, startupz, models]
    for path, status in (("/livez", livez), ("/readyz", readyz)):
        reasons = http.get(path).json()["reasons"]
        assert bool(reasons) == (status == 503), "whoever says no says why"
        assert all(reasons)
    assert {"state", "phases", "elapsed_s"} <= http.get("/startupz").json().keys()
    assert http.get("/health").status_code == readyz
    assert http.get("/version").status_code == 200
    assert http.get("/metrics").status_code == 200
    assert http.post(CHAT, json=chat_body()).status_code == models


def test_while_loading_a_refusal_says_how_far_it_is(
    http: httpx.Client, in_state: Callable[[str], None]
) -> None:
    in_state("loading")
    answer = http.post(CHAT, json=chat_body())
    error = answer.json()["error"]
    assert error["code"] == "not_ready"
    assert error["message"] == "the model is loading: fetch, 12%"
    assert error["phase"] == "fetch"
    assert error["fraction"] == pytest.approx(0.12, abs=0.01)
    assert int(answer.headers["retry-after"]) >= 1


def test_startupz_has_phases_and_an_estimate(
    http: httpx.Client, in_state: Callable[[str], None]
) -> None:
    in_state("loading")
    report = http.get("/startupz").json()
    assert report["state"] == "loading"
    assert [phase["name"] for phase in report["phases"]] == ["fetch"]
    assert report["eta_s"] >= 0


def test_startupz_says_why_it_failed(http: httpx.Client, in_state: Callable[[str], None]) -> None:
    in_state("failed")
    assert http.get("/startupz").json()["error"] == "no such file"
    assert "no such file" in http.get("/readyz").json()["reasons"][0]


def test_draining_refuses_and_closes_the_connection(
    http: httpx.Client, in_state: Callable[[str], None]
) -> None:
    in_state("draining")
    answer = http.post(CHAT, json=chat_body())
    assert answer.headers["connection"] == "close"
    assert int(answer.headers["retry-after"]) >= 1


def test_a_stream_that_runs_when_draining_begins_ends_whole(
    server: Running, http: httpx.Client, in_state: Callable[[str], None]
) -> None:
    server.engine.step_s = 0.01
    with http.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        in_state("draining")
        text = "\n".join(lines)
    assert '"finish_reason":"stop"' in text
    assert text.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("n", [1, 3])
def test_at_the_deadline_a_stream_is_told_and_then_done(
    server: Running, http: httpx.Client, n: int
) -> None:
    server.engine.script = says("x" * 200)
    server.engine.step_s = 0.02
    with http.stream("POST", CHAT, json=chat_body(stream=True, n=n)) as answer:
        lines = answer.iter_lines()
        next(lines)
        end = (NotReady("time is up"), "drain_deadline")
        server.loop.call_soon_threadsafe(server.service.end_all, *end)
        *_, error, done = [line.removeprefix("data: ") for line in lines if line]
    assert json.loads(error)["error"]["message"] == "time is up"
    assert done == "[DONE]"
    eventually(lambda: server.engine.aborted == n)


def test_at_the_deadline_an_answer_is_refused_not_cut(server: Running) -> None:
    server.engine.script = says("x" * 200)
    server.engine.step_s = 0.02

    def end_soon() -> None:
        server.service.end_all(NotReady("time is up"), "drain_deadline")

    server.loop.call_soon_threadsafe(server.loop.call_later, 0.2, end_soon)
    with server.client() as http:
        answer = http.post(CHAT, json=chat_body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")


def test_at_the_deadline_one_whose_grammar_is_tried_is_told_too(server: Running) -> None:
    schema = PRIMES | {"title": "tried by nobody else"}
    form = {"type": "json_schema", "json_schema": {"name": "slow", "schema": schema}}
    over = NotReady("time is up")
    with server.client() as http, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(http.post, CHAT, json=chat_body(response_format=form))
        eventually(lambda: len(server.service.preparations) == 1)
        server.loop.call_soon_threadsafe(server.service.end_all, over, "drain_deadline")
        answer = asked.result()
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "time is up")
    assert server.service.idle


def test_the_plan_stands_beside_what_was_measured(http: httpx.Client) -> None:
    shown = http.get("/v1/servekit/plan").json()
    assert shown["plan"] == {"verdict": "ok"}
    assert shown["measured"]["weights_bytes"] == 1000


def test_without_an_exporter_there_is_no_metrics_route(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(None, tiny_config(telemetry={"exporter": "none"}))
    with server.client() as http:
        assert http.get("/metrics").status_code == 404
        assert http.post(CHAT, json=chat_body()).status_code == 200


@pytest.mark.parametrize(
    ("done", "total", "seconds", "left"),
    [(25, 100, 2.0, 6.0), (0, 100, 2.0, None), (5, 0, 2.0, None), (100, 100, 2.0, 0.0)],
)
def test_what_is_left_is_in_proportion(done: int, total: int, seconds: float, left: Any) -> None:
    assert Phase("load", started=0.0, done=done, total=total).left_s(seconds) == left
