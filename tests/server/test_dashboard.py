"""The live page's numbers, and who may see them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from servekit.engine.messages import Event, Step
from servekit.server.dashboard.board import (
    DECODE,
    PREEMPTED,
    PREFILL,
    SAMPLES,
    STATES,
    Board,
    SeatMap,
    beside,
)
from servekit.server.dashboard.routes import HANDLERS
from servekit.server.running import Running as EngineRequest
from servekit.telemetry.exporters import NoExporter
from servekit.telemetry.metrics import Metrics
from servekit.telemetry.service_level import Targets
from tests.server.conftest import FakeEngine, Running, chat_body


class Words:
    """Stands for an answer."""

    finished = False


def request(*kinds: str, first: bool = False, finished: bool = False) -> EngineRequest:
    answer = Words()
    answer.finished = finished
    events = [Event(0, kind, 0.0, 0.0, 0) for kind in kinds]  # type: ignore[arg-type]
    made = EngineRequest(None, answer, 5, events=events)  # type: ignore[arg-type]
    made.first_at = 1.0 if first else None
    return made


def look(seats: SeatMap, *running: EngineRequest) -> list[tuple[int, int]]:
    """Request and state of each seat."""
    return [divmod(cell, STATES) for cell in seats.look(running)]


def test_a_request_is_seen_on_a_seat_from_its_first_chunk_to_its_end() -> None:
    waits, reads, writes = request(), request("seated", "chunk"), request("seated", first=True)
    away = request("seated", "chunk", "preempted", first=True)
    over = request("seated", first=True, finished=True)
    assert look(SeatMap(), waits, reads, writes, away, over) == [
        (reads.number, PREFILL),
        (writes.number, DECODE),
        (away.number, PREEMPTED),
    ]


def test_a_request_keeps_its_seat_and_a_free_one_is_given_again() -> None:
    seats = SeatMap()
    first, second, third = (request("seated") for _ in range(3))
    assert [number for number, _ in look(seats, first, second)] == [first.number, second.number]
    assert [number for number, _ in look(seats, second)] == [0, second.number]
    assert [number for number, _ in look(seats, second, third)] == [third.number, second.number]
    assert look(seats) == []


def test_more_requests_than_are_drawn_are_no_trouble() -> None:
    assert len(SeatMap().look([request("seated") for _ in range(100)])) == 64


def metrics() -> Metrics:
    return Metrics(NoExporter().meter, "tiny", lambda: {"running": 3, "waiting": 1})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what the time is."""
    return lambda now: monkeypatch.setattr(time, "monotonic", lambda: now)


def test_there_is_a_sample_a_second_and_no_more_than_ten_minutes(
    clock: Callable[[float], None],
) -> None:
    board, measured = Board(), metrics()
    for tenth in range(10 * (SAMPLES + 50)):
        clock(100.0 + tenth / 10)
        board.tick(measured, [])
    assert len(board.samples) == SAMPLES
    clock(100.0 + SAMPLES + 49.95)
    before = board.samples[-1]
    board.tick(measured, [])
    assert board.samples[-1] is before


def test_a_sample_says_how_many_tokens_a_second_were_computed(
    clock: Callable[[float], None],
) -> None:
    board, measured = Board(), metrics()
    clock(10.0)
    board.tick(measured, [])
    for _ in range(4):
        measured.step(Step(3, prefill_tokens=30, decode_tokens=10, seconds=0.1, build_s=0.0))
    clock(12.0)
    board.tick(measured, [])
    sample = board.samples[-1]
    assert (sample["prefill_per_s"], sample["decode_per_s"], sample["steps_per_s"]) == (60, 20, 2)
    assert (sample["running"], sample["waiting"], sample["kv_used"]) == (3, 1, None)


def test_planned_stands_beside_measured_and_what_is_unknown_is_null() -> None:
    measured = metrics()
    measured.plan(Targets.of_ms(250.0, None, 95.0))
    measured.answer("chat", "stop", tokens=3, decode_s=0.02, ttft_s=0.4)
    plan = {"kv": {"capacity_tokens": 100}, "memory": {"weights_gib": 2.0}}
    rows = {row["name"]: row for row in beside(plan, {"capacity_tokens": 90}, measured, 7.0)}
    assert (rows["KV capacity"]["planned"], rows["KV capacity"]["measured"]) == (100, 90)
    assert (rows["TTFT"]["planned"], rows["TTFT"]["measured"]) == (250.0, 400.0)
    assert (rows["TPOT"]["planned"], rows["TPOT"]["measured"]) == (None, 10.0)
    assert rows["weights"]["measured"] is None


def test_the_data_are_what_was_measured(start_server: Callable[..., Running]) -> None:
    server = start_server(FakeEngine())
    with server.client() as client:
        client.post("/v1/chat/completions", json=chat_body())
        data: dict[str, Any] = client.get("/dashboard/data").json()
        assert data["model"] == "tiny"
        assert len(data["latencies"]["ttft"]["ms"]) == 1
        (sample,) = data["samples"]
        again = client.get("/dashboard/data", params={"since": sample["at"]}).json()
        assert all(one["at"] > sample["at"] for one in again["samples"])


def test_the_numbers_are_for_admins_and_the_page_has_none_in_it(server: Running) -> None:
    access = {path: handler.opt["access"] for handler in HANDLERS for path in handler.paths}
    assert access.pop("/dashboard/data") == "admin"
    assert set(access.values()) == {"public"}
    with server.client() as client:
        for path in access:
            assert client.get(path).status_code == 200
            assert server.service.config.name not in client.get("/dashboard").text


def test_the_page_and_its_scripts_name_no_other_host(server: Running) -> None:
    with server.client() as client:
        answer = client.get("/dashboard")
        policy = answer.headers["content-security-policy"]
        ours = [client.get(f"/dashboard/dashboard.{kind}").text for kind in ("js", "css")]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert "<script>" not in answer.text
    assert not any("://" in text for text in (answer.text, *ours))


def test_scripts_come_from_the_package_that_is_installed(server: Running) -> None:
    with server.client() as client:
        answer = client.get("/dashboard/plotly.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert b"plotly.js v" in answer.content[:200]
