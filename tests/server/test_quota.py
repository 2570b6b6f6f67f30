"""What one key may use at once and in a minute; who exceeds it gets 429 and a time to return."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from servekit.errors import (
    ConcurrencyExceeded,
    Overloaded,
    RequestError,
    RequestRateExceeded,
    TokenRateExceeded,
)
from servekit.server.keys import Key
from servekit.server.quota import Quota
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, chunks_of, eventually, says
from tests.server.keyed import bearer, key_file, line

CHAT = "/v1/chat/completions"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def key(**limits: Any) -> Key:
    return Key(tenant="acme", sha256="0" * 64, **limits)


def test_answers_at_once_are_counted_until_they_end() -> None:
    quota, limited = Quota(), key(max_concurrent=3)
    quota.enter(limited, 2, 10)
    with pytest.raises(ConcurrencyExceeded, match="has 2 answers running"):
        quota.enter(limited, 2, 10)
    quota.running -= 2
    quota.enter(limited, 3, 10)


def test_requests_of_a_minute_come_back_one_by_one() -> None:
    clock = Clock()
    quota, limited = Quota(clock), key(requests_per_minute=2)
    quota.enter(limited, 1, 1)
    quota.enter(limited, 1, 1)
    with pytest.raises(RequestRateExceeded) as refused:
        quota.enter(limited, 1, 1)
    assert refused.value.retry_after_s == pytest.approx(30.0)
    clock.now += 30
    quota.enter(limited, 1, 1)


def test_tokens_of_answers_are_a_debt_that_the_next_prompt_waits_for() -> None:
    clock = Clock()
    quota, limited = Quota(clock), key(tokens_per_minute=60)
    quota.enter(limited, 1, 40)
    quota.tokens.used += 50
    with pytest.raises(TokenRateExceeded) as refused:
        quota.enter(limited, 1, 10)
    assert refused.value.retry_after_s == pytest.approx(40.0)
    clock.now += 40
    quota.enter(limited, 1, 10)


def test_nothing_is_saved_up_beyond_a_minute() -> None:
    clock = Clock()
    quota, limited = Quota(clock), key(tokens_per_minute=60)
    clock.now += 3600
    quota.enter(limited, 1, 60)
    with pytest.raises(TokenRateExceeded):
        quota.enter(limited, 1, 1)


def test_who_is_refused_is_not_charged() -> None:
    clock = Clock()
    quota, limited = Quota(clock), key(tokens_per_minute=60, max_concurrent=1)
    quota.enter(limited, 1, 10)
    for _ in range(10):
        with pytest.raises(Overloaded):
            quota.enter(limited, 1, 50)
    quota.running = 0
    quota.enter(limited, 1, 50)


@pytest.mark.parametrize(
    ("limits", "param"), [({"max_concurrent": 2}, "n"), ({"tokens_per_minute": 9}, "prompt")]
)
def test_what_the_limits_never_let_in_is_a_wrong_request(
    limits: dict[str, int], param: str
) -> None:
    with pytest.raises(RequestError) as refused:
        Quota().enter(key(**limits), 3, 10)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_limits_that_change_hold_from_then_on() -> None:
    clock = Clock()
    quota = Quota(clock)
    quota.enter(key(tokens_per_minute=60), 1, 60)
    quota.enter(key(tokens_per_minute=600), 1, 540)
    with pytest.raises(TokenRateExceeded):
        quota.enter(key(tokens_per_minute=60), 1, 1)


@pytest.fixture
def limited(start_server: Callable[..., Running], tmp_path: Path) -> Callable[..., Running]:
    def start(engine: FakeEngine, **limits: Any) -> Running:
        lines = line("sk", id="mine", **limits), line("sk-2", id="other")
        return start_server(engine, tiny_config(server={"api_keys": key_file(tmp_path, *lines)}))

    return start


def refused(answer: httpx.Response, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, code), answer.text
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_key_has_its_own_number_of_answers_at_once(
    limited: Callable[..., Running], stream: bool
) -> None:
    server = limited(FakeEngine(script=says("x" * 100), step_s=0.01), max_concurrent=2)
    body = chat_body(stream=True)
    with server.client() as http:
        with http.stream("POST", CHAT, json={**body, "n": 2}, headers=bearer("sk")) as running:
            lines = running.iter_lines()
            next(lines)
            late = http.post(CHAT, json=chat_body(stream=stream), headers=bearer("sk"))
            refused(late, "concurrency_exceeded")
            assert http.post(CHAT, json=body, headers=bearer("sk-2")).status_code == 200
        eventually(lambda: not server.service.generations)
        assert http.post(CHAT, json=body, headers=bearer("sk")).status_code == 200
        many = http.post(CHAT, json=chat_body(n=3), headers=bearer("sk"))
        assert (many.status_code, many.json()["error"]["param"]) == (400, "n")


def test_prompts_and_answers_count_and_a_running_answer_is_not_cut(
    limited: Callable[..., Running],
) -> None:
    server = limited(FakeEngine(script=says("x" * 100, end=None)), tokens_per_minute=60)
    with server.client(headers=bearer("sk")) as http:
        whole = http.post(CHAT, json=chat_body(stream=True))
        assert len(chunks_of(whole.text)) == 103
        refused(http.post(CHAT, json=chat_body()), "token_rate_exceeded")
        wait_s = int(http.post(CHAT, json=chat_body()).headers["retry-after"])
    # 20 of the prompt and 100 of the answer, of which 60 are gone and 20 more are asked for
    assert 60 <= wait_s <= 80


def test_requests_of_a_key_are_counted(limited: Callable[..., Running]) -> None:
    server = limited(FakeEngine(), requests_per_minute=2)
    with server.client(headers=bearer("sk")) as http:
        statuses = [http.post(CHAT, json=chat_body()).status_code for _ in range(2)]
        assert statuses == [200, 200]
        refused(http.post(CHAT, json=chat_body()), "request_rate_exceeded")


def test_who_the_engine_does_not_let_in_pays_no_tokens(limited: Callable[..., Running]) -> None:
    server = limited(FakeEngine(refusal=("full", "queue_full", 1.0)), tokens_per_minute=60)
    with server.client(headers=bearer("sk")) as http:
        for _ in range(9):
            refused(http.post(CHAT, json=chat_body()), "queue_full")
