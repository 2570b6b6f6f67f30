"""Traces replayed: their times, their lengths, and what their prompts share."""

import json
from pathlib import Path
from typing import Any

import pytest

from servekit.workload.arrival import prompt
from servekit.workload.moments import moments
from servekit.workload.source import Source, source
from tests.conftest import tiny_config

HASHED = [
    {"timestamp": 2000, "input_length": 1300, "output_length": 9, "hash_ids": [4, 5, 6]},
    {"timestamp": 4000, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 8]},
    {"timestamp": 8000, "input_length": 1030, "output_length": 5, "hash_ids": [4]},
]
OWN = [
    {"arrival_s": 0, "input_tokens": 100, "output_tokens": 20, "session_id": "x", "tenant": "a"},
    {"arrival_s": 1, "input_tokens": 10, "output_tokens": 2},
    {"arrival_s": 5, "input_tokens": 150, "output_tokens": 20, "session_id": "x", "priority": 2},
]
CONVERSATIONS = [
    {"conversations": [
        {"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 20},
        {"from": "human", "value": "x" * 8}, {"from": "gpt", "value": "y" * 4},
    ]},
    {"conversations": [
        {"from": "human", "value": "x" * 80}, {"from": "gpt", "value": "y" * 12},
    ]},
]  # fmt: skip


def of(folder: Path, entries: list[Any], lines: bool = True, **workload: Any) -> Source:
    return source(declared(folder, entries, lines, **workload), max_model_len=4096, seed=1)


def declared(folder: Path, entries: list[Any], lines: bool = True, **workload: Any) -> Any:
    path = folder / "trace"
    text = "\n".join(map(json.dumps, entries)) if lines else json.dumps(entries)
    path.write_text(text)
    return tiny_config(workload={"trace": str(path), **workload}).workload


def test_requests_come_at_their_own_times_and_then_no_more(tmp_path: Path) -> None:
    found = of(tmp_path, HASHED, request_rate=1000.0).first(100)
    assert [a.at for a in found] == [0.0, 2.0, 6.0]
    assert [(a.prompt_tokens, a.output_tokens) for a in found] == [(1300, 9), (1100, 7), (1030, 5)]


def test_a_trace_is_replayed_faster(tmp_path: Path) -> None:
    assert [a.at for a in of(tmp_path, HASHED, trace_speed=4.0)] == [0.0, 0.5, 1.5]


def test_equal_blocks_are_equal_tokens_and_what_has_no_block_is_its_own(tmp_path: Path) -> None:
    one, two, three = (prompt(arrival) for arrival in of(tmp_path, HASHED))
    assert [len(one), len(two), len(three)] == [1300, 1100, 1030]
    assert one[:1024] == two[:1024]
    assert one[1024] != two[1024]
    assert one[:512] == three[:512]
    assert one[512] != three[512]


def test_a_request_of_a_session_repeats_the_one_before(tmp_path: Path) -> None:
    first, other, then = of(tmp_path, OWN)
    said = prompt(first) + [first.answer] * 20
    assert prompt(then)[:120] == said
    assert then.prompt_tokens == 150
    assert (then.session, then.turn) == (first.session, 1)
    assert prompt(other)[0] not in said


def test_a_trace_with_times_answers_nobody(tmp_path: Path) -> None:
    requests = of(tmp_path, OWN, turns=5.0, prompt_tokens=1000)
    first = next(iter(requests))
    assert requests.answered(first, 3.0) == []
    assert requests.unanswered(first, 3.0) == []


def test_what_a_trace_does_not_say_of_clients_is_drawn(tmp_path: Path) -> None:
    found = of(tmp_path, OWN, tenants={"b": 1.0}, priorities={"7": 1.0}, batch_share=1.0).first(3)
    assert [a.tenant for a in found] == ["a", "b", "b"]
    assert [a.priority for a in found] == [7, 7, 2]
    assert {a.slo_class for a in found} == {"batch"}


def test_conversations_without_times_come_as_declared_and_go_on_once_answered(
    tmp_path: Path,
) -> None:
    requests = of(
        tmp_path, CONVERSATIONS, lines=False, request_rate=3.0, arrival_cv=0.0, think_s=0.0
    )
    one, two, again = requests.first(3)
    # of two conversations with three requests, two begin in the time of three requests
    assert [a.at for a in (one, two, again)] == pytest.approx([0.5, 1.0, 1.5])
    assert [a.prompt_tokens for a in (one, two, again)] == [10, 20, 10]
    assert prompt(again)[0] != prompt(one)[0]
    (then,) = requests.answered(one, 9.0)
    assert (then.at, then.prompt_tokens, then.output_tokens) == (9.0, 17, 1)
    assert prompt(then)[:15] == prompt(one) + [one.answer] * 5
    assert requests.answered(then, 10.0) == []
    assert requests.answered(two, 10.0) == []


def test_closed_clients_take_the_next_conversation(tmp_path: Path) -> None:
    requests = of(tmp_path, CONVERSATIONS, lines=False, arrivals="closed", concurrency=2)
    one, two = requests.first(9)
    (then,) = requests.answered(two, 4.0)
    assert (then.session, then.prompt_tokens, then.at) == (3, 20, 4.0)
    assert one.session == 0


def test_requests_longer_than_the_model_are_cut_and_say_so(tmp_path: Path) -> None:
    work = declared(tmp_path, HASHED)
    requests = source(work, max_model_len=1105, seed=1)
    found = requests.first(9)
    assert [(a.prompt_tokens, a.output_tokens) for a in found] == [(1104, 1), (1100, 5), (1030, 5)]
    assert [len(prompt(a)) for a in found] == [1104, 1100, 1030]
    assert [a.is_cut for a in found] == [True, True, False]


def test_moments_are_those_of_the_trace_at_its_speed(tmp_path: Path) -> None:
    found = moments(declared(tmp_path, HASHED, trace_speed=2.0))
    assert found.rate == pytest.approx(2 / 3)
    assert found.arrival_cv == pytest.approx(1 / 3)
    assert found.prompt == pytest.approx((1300 + 1100 + 1030) / 3)
    assert found.output == pytest.approx(7)
    assert found.repeated == pytest.approx((0 + 1024 + 512) / 3)
    assert (found.requests, found.turns) == (3, 1.0)


def test_moments_of_conversations_have_the_declared_rate(tmp_path: Path) -> None:
    found = moments(declared(tmp_path, CONVERSATIONS, lines=False, request_rate=3.0))
    assert (found.rate, found.arrival_cv, found.requests) == (3.0, 1.0, None)
    assert found.turns == 1.5
    assert found.repeated == pytest.approx(15 / 3)


def test_a_trace_in_which_all_come_at_once_has_the_declared_rate(tmp_path: Path) -> None:
    work = declared(tmp_path, [{**HASHED[0]}, {**HASHED[0]}], request_rate=6.0)
    assert moments(work).rate == 6.0
    assert moments(work).repeated == pytest.approx(1300 / 2)
