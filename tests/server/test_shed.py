"""While the queue is full, who comes is refused at once, and nothing is done for it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from servekit.config.scheduling import SchedulerConfig
from servekit.server.shed import Shed
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, eventually, says
from tests.server.keyed import bearer, key_file, line
from tests.server.test_errors import error_of

CHAT = "/v1/chat/completions"
SMALL = {"max_num_seqs": 1, "max_num_waiting": 1}


@contextmanager
def full(server: Running, http: httpx.Client, **headers: str) -> Iterator[None]:
    """Two streams that go on for long: one has the seat, one the place in the queue."""
    server.engine.script = says("on and on " * 20)
    server.engine.step_s = 0.05
    with ExitStack() as stack:
        for _ in range(2):
            body = chat_body(stream=True)
            answer = stack.enter_context(http.stream("POST", CHAT, json=body, headers=headers))
            assert answer.status_code == 200
        yield


def test_a_full_queue_refuses_whatever_is_asked(start_server: Callable[..., Running]) -> None:
    server = start_server(FakeEngine(), tiny_config(scheduler=SMALL))
    with server.client() as http:
        with full(server, http):
            for _ in range(3):
                answer = http.post(CHAT, json=chat_body())
                assert error_of(answer, 429)["code"] == "queue_full"
                assert int(answer.headers["retry-after"]) >= 1
            assert http.post("/v1/completions", content=b"x" * 100_000).status_code == 429
            assert http.get("/v1/models").status_code == 200
            assert http.post("/tokenize", json={"prompt": "a"}).status_code == 200
        assert len(server.engine.streams) == 2, "the engine never heard of the others"
        assert (
            'servekit_requests_refused_total{reason="queue_full"} 4.0' in http.get("/metrics").text
        )
        eventually(lambda: server.engine.num_open == 0)
        server.engine.script = says("ok")
        assert http.post(CHAT, json=chat_body()).status_code == 200


def test_who_has_no_key_learns_nothing_of_the_queue(
    start_server: Callable[..., Running], tmp_path: Path
) -> None:
    keys = key_file(tmp_path, line("sk-known"))
    server = start_server(FakeEngine(), tiny_config(scheduler=SMALL, server={"api_keys": keys}))
    with server.client() as http, full(server, http, **bearer("sk-known")):
        assert http.post(CHAT, json=chat_body()).status_code == 401
        assert http.post(CHAT, json=chat_body(), headers=bearer("sk-other")).status_code == 401
        assert http.post(CHAT, json=chat_body(), headers=bearer("sk-known")).status_code == 429


@pytest.mark.parametrize(("num_open", "refused"), [(2, False), (5, False), (6, True), (9, True)])
def test_it_is_full_when_seats_and_queue_are(
    scheduler_config: SchedulerConfig, num_open: int, refused: bool
) -> None:
    assert (Shed(scheduler_config).refusal(num_open, 0.0) is not None) == refused


def test_the_refused_are_told_turns_as_far_apart_as_others_are_served(
    scheduler_config: SchedulerConfig,
) -> None:
    shed = Shed(scheduler_config)
    for second in range(10):
        shed.served(4.0 * second)
    told = [error.retry_after_s for _ in range(8) if (error := shed.refusal(6, 36.0))]
    assert len(told) == 8
    assert told[-1] is not None
    assert told[-1] >= 28.0, "the eighth comes after seven others"


@pytest.fixture
def scheduler_config() -> SchedulerConfig:
    return tiny_config(scheduler={"max_num_seqs": 4, "max_num_waiting": 2}).scheduler
