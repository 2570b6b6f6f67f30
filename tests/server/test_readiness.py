"""/readyz and /livez: reasons, one by one."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import Stats
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running

STATS = {name: 0 for name in Stats.__struct_fields__}
STATS |= {"prefix_miss_tokens_total": {}, "refused_total": {}, "predicted_ttft_s": None}


@pytest.fixture(scope="module")
def limited(start_server: Callable[..., Running]) -> Running:
    limits = {"max_num_waiting": 3, "max_waiting_tokens": 100, "max_wait_s": 2.0}
    return start_server(FakeEngine(), tiny_config(scheduler=limits))


@pytest.fixture
def http(limited: Running) -> Iterator[httpx.Client]:
    limited.engine.stats, limited.engine.heartbeat = None, FakeEngine().heartbeat
    with limited.client() as client:
        yield client


def silent_for(seconds: float, **words: float) -> Heartbeat:
    heartbeat = Heartbeat(hang_s=10.0, loading=False, **words)
    heartbeat.heard_at = time.monotonic() - seconds
    return heartbeat


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ({"waiting": 3}, "3 requests wait, scheduler.max_num_waiting is 3"),
        ({"waiting_tokens": 120}, "120 prompt tokens wait, scheduler.max_waiting_tokens is 100"),
        (
            {"predicted_ttft_s": 2.5},
            "2.5 seconds are predicted until a first token, scheduler.max_wait_s is 2",
        ),
    ],
)
def test_a_queue_at_its_limit_sends_requests_elsewhere(
    limited: Running, http: httpx.Client, waiting: dict[str, Any], reason: str
) -> None:
    limited.engine.stats = msgspec.convert(STATS | waiting, Stats)
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, [reason])
    assert http.get("/livez").status_code == 200


def test_a_queue_below_its_limits_is_ready(limited: Running, http: httpx.Client) -> None:
    below = {"waiting": 2, "waiting_tokens": 99, "predicted_ttft_s": 1.9}
    limited.engine.stats = msgspec.convert(STATS | below, Stats)
    assert http.get("/readyz").json() == {"status": "ready", "reasons": []}


def test_a_long_step_is_alive_and_ready(limited: Running, http: httpx.Client) -> None:
    limited.engine.heartbeat = silent_for(0.5, step_s=9.0)
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz").status_code == 200


def test_an_engine_not_heard_for_a_while_is_alive_and_not_ready(
    limited: Running, http: httpx.Client
) -> None:
    limited.engine.heartbeat = silent_for(7.0)
    alive = http.get("/livez")
    assert alive.status_code == 200
    assert 7 <= alive.json()["heartbeat_age_s"] < alive.json()["heartbeat_limit_s"] == 10
    metrics = http.get("/metrics").text
    (age,) = re.findall(r"^servekit_engine_heartbeat_age_seconds (\S+)", metrics, re.MULTILINE)
    assert 7 <= float(age) < 10
    assert http.get("/readyz").json()["reasons"] == ["the engine was last heard 7 s ago"]


@pytest.mark.parametrize(
    ("heartbeat", "reason"),
    [
        (lambda: silent_for(30.0), "has not been heard for 30 s, the limit is 10 s"),
        (lambda: silent_for(0.0, step_s=31.0), "goes on since 31 s, the limit is 10 s"),
    ],
)
def test_an_engine_silent_beyond_the_limit_is_dead(
    limited: Running, http: httpx.Client, heartbeat: Callable[[], Heartbeat], reason: str
) -> None:
    limited.engine.heartbeat = heartbeat()
    answer = http.get("/livez")
    assert (answer.status_code, answer.json()["status"]) == (503, "dead")
    assert reason in answer.json()["reasons"][0]
