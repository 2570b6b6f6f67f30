"""`response_format`, `regex` and `choice`: what is asked is what comes, or one clear 400."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from servekit.model.grammar import json_grammar
from servekit.model.vocabulary import vocabulary_of
from servekit.server import grammars
from servekit.server.constraint import MAX_SCHEMA_BYTES
from servekit.server.grammars import TOO_MUCH, Child
from tests.server.conftest import ByteTokenizer, Running, chat_body, eventually, says

CHAT = "/v1/chat/completions"
VOCABULARY = vocabulary_of(ByteTokenizer(), 259)


def as_schema(schema: Any, **named: Any) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, **named},
        }
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


PRIMES = {"allOf": [{"type": "integer", "multipleOf": p} for p in (7, 11, 13, 17, 19, 23, 29)]}
"""Its automaton has 215,656,441 states, and is built before the library looks at its limits."""


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object"),
        (as_schema({"type": "object"}, strict=True, description="any"), "json_schema"),
        (as_schema(True), "json_schema"),
        ({"regex": "[a-z]+"}, "regex"),
        ({"choice": ["yes", "no"]}, "choice"),
        ({"choice": ["yes"], "response_format": {"type": "text"}}, "choice"),
    ],
)
def test_a_form_that_can_be_had_reaches_the_engine(
    server: Running, http: httpx.Client, fields: dict[str, Any], kind: str
) -> None:
    body = chat_body(**fields)
    for path, asked in ((CHAT, body), ("/v1/completions", {**body, "prompt": "a"})):
        if path != CHAT:
            del asked["messages"]
        answer = http.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        sampling = server.engine.streams[-1].sampling
        assert sampling.grammar is not None
        assert {1, 2} & set(sampling.stop_token_ids) or sampling.stop_token_ids
    assert f'servekit_requests_constrained_total{{kind="{kind}"}}' in http.get("/metrics").text


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"regex": None}])
def test_without_a_form_the_engine_is_asked_for_none(
    server: Running, http: httpx.Client, fields: dict[str, Any]
) -> None:
    assert http.post(CHAT, json=chat_body(**fields)).status_code == 200
    assert server.engine.streams[-1].sampling.grammar is None


def refusal(http: httpx.Client, fields: dict[str, Any]) -> tuple[str, str]:
    """Its param and message."""
    answer = http.post(CHAT, json=chat_body(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400
    return error["param"], error["message"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "uniqueItems": True}, 'the schema keyword "uniqueItems" is not'),
        ({"not": {"type": "string"}}, 'the schema keyword "not" is not supported'),
        ({"if": {}, "then": {}}, 'the schema keyword "if", "then" is not supported'),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, '"oneOf" is supported'),
        ({"x-guidance": {"lenient": True}, "not": {}}, 'the schema keyword "not" is not supported'),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": "(a"}, "unclosed group"),
        ({"type": "string", "format": "blob"}, "Unknown format: blob"),
        ({"type": "word"}, "Invalid type: word"),
        ({"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
        ({"$ref": "http://127.0.0.1:1/schema"}, "does not fetch resources"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum (5) is greater than maximum"),
        ({"enum": []}, "Unsatisfiable schema: anyOf is empty"),
        (False, "Unsatisfiable schema: schema is false"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "allows no text at all"),
        (nested(80), "nested more than 64 levels deep"),
        ({"const": "x" * MAX_SCHEMA_BYTES}, f"at most {MAX_SCHEMA_BYTES} are taken"),
        ({"enum": [f"{n:030}" for n in range(30_000)]}, f"at most {MAX_SCHEMA_BYTES} are taken"),
        (
            {"type": "object", "properties": {f"p{n}": {} for n in range(2500)}},
            "Current row has 10007 items",
        ),
        (7, "neither an object nor true or false"),
        (PRIMES, TOO_MUCH),
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_refused_with_the_reason(
    http: httpx.Client, schema: Any, said: str
) -> None:
    param, message = refusal(http, as_schema(schema))
    assert said in message
    assert param in ("response_format", "")


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "/response_format/type", "Invalid value 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "/response_format/json_schema", "required"),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            "/response_format",
            "unknown field `schema`",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "/response_format/json_schema/schema",
            "required",
        ),
        ({"regex": ""}, "regex", "regex is empty"),
        ({"regex": "a" * 9000}, "regex", "9000 characters"),
        ({"regex": "(a"}, "regex", "unclosed group"),
        ({"regex": "a\\b"}, "regex", "lookarounds not supported"),
        ({"regex": "(a)\\1"}, "regex", "backreferences are not supported"),
        ({"regex": "(" * 3000 + "a" + ")" * 3000}, "regex", "nest"),
        ({"choice": []}, "choice", "empty list"),
        ({"choice": [""]}, "choice", "a choice is empty"),
        ({"choice": ["a"] * 2000}, "choice", "2000 choices"),
        ({"choice": ["a" * 40_000]}, "choice", "32768 characters"),
        ({"regex": "a", "choice": ["a"]}, "choice", "regex and choice each say"),
        (
            {"regex": "a", "response_format": {"type": "json_object"}},
            "regex",
            "response_format and regex each say",
        ),
        ({"regex": "aa", "min_tokens": 1}, "min_tokens", "which may be complete before"),
        ({"choice": ["a"], "ignore_eos": True}, "ignore_eos", "from ending"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(
    http: httpx.Client, fields: dict[str, Any], param: str, said: str
) -> None:
    where, message = refusal(http, fields)
    assert (where, said in message) == (param, True), message


@pytest.mark.parametrize(
    "field",
    [
        b'"regex": "\\ud800"',
        b'"choice": ["\\udc00"]',
        b'"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": '
        + b'{"items":' * 9000
        + b"{}"
        + b"}" * 9000
        + b"}}",
        b'"response_format": ' + b"[" * 100_000,
    ],
    ids=["half a pair", "other half", "deep", "open"],
)
def test_hostile_json_is_refused(http: httpx.Client, field: bytes) -> None:
    body = b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], %s}' % field
    answer = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_other_requests_are_served_while_a_grammar_takes_for_ever(
    start_server: Callable[..., Running],
) -> None:
    """And the process that it wore out is followed by another."""
    running = start_server()
    grammars = running.service.grammars
    with running.client() as slow, running.client() as http:
        assert http.post(CHAT, json=chat_body(choice=["a"])).status_code == 200
        first = grammars._child.process
        with slow.stream("POST", CHAT, json=chat_body(**as_schema(PRIMES))) as refused:
            assert refused.status_code == 400
        running.engine.script = says("b")
        assert http.post(CHAT, json=chat_body(choice=["b"])).status_code == 200
        assert first is not None
        assert first.poll() is not None
        assert grammars._child.process is not first


def test_the_event_loop_goes_on_during_a_trial(start_server: Callable[..., Running]) -> None:
    running = start_server()
    over: list[int] = []

    def ask() -> None:
        with running.client() as client:
            over.append(client.post(CHAT, json=chat_body(**as_schema(PRIMES))).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: running.service.grammars._child.process is not None)
    with running.client() as http:
        for _ in range(20):
            assert http.post(CHAT, json=chat_body()).status_code == 200
        assert not over, "all of them were answered before the trial was over"
    thread.join()
    assert over == [400]


def test_a_verdict_is_remembered(start_server: Callable[..., Running]) -> None:
    running = start_server()
    trials: list[float] = []
    running.service.grammars._observe = trials.append
    with running.client() as http:
        for _ in range(3):
            assert http.post(CHAT, json=chat_body(choice=["a"])).status_code == 200
            assert refusal(http, {"regex": "(a"})[0] == "regex"
    assert len(trials) == 2


def test_too_many_that_wait_are_told_to_come_again(
    start_server: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servekit.server.grammars.MAX_WAITING", 0)
    with start_server().client() as http:
        answer = http.post(CHAT, json=chat_body(choice=["a"]))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"


def test_a_model_without_an_end_token_takes_no_grammar(
    start_server: Callable[..., Running],
) -> None:
    running = start_server()
    running.service.tokenizer = endless = ByteTokenizer()
    endless.eos_ids = frozenset()
    with running.client() as http:
        assert "end-of-sequence token" in refusal(http, {"choice": ["a"]})[1]


def test_a_child_that_was_killed_between_two_grammars_is_replaced() -> None:
    child = Child()
    assert child.objection(json_grammar({}), VOCABULARY) == ""
    first = child.process
    assert first is not None
    first.kill()
    first.wait()
    assert child.objection(json_grammar({}), VOCABULARY) == ""
    assert child.process is not first


def test_a_child_that_was_killed_during_a_trial_condemns_no_grammar() -> None:
    child = Child()
    assert child.objection(json_grammar({}), VOCABULARY) == ""
    process = child.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    threading.Timer(0.3, process.kill).start()
    with pytest.raises(OSError, match="was killed"):
        child.objection(json_grammar({}), VOCABULARY)
    assert child.objection(json_grammar({}), VOCABULARY) == ""


def test_a_machine_too_busy_for_a_verdict_condemns_no_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = Child()
    assert child.objection(json_grammar({}), VOCABULARY) == ""
    process = child.process
    assert process is not None
    monkeypatch.setattr(grammars, "TRIAL_S", 0.2)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(OSError, match="too busy"):
        child.objection(json_grammar({}), VOCABULARY)
    monkeypatch.undo()
    assert child.objection(json_grammar({}), VOCABULARY) == ""


def test_the_child_ends_with_the_server() -> None:
    child = Child()
    assert child.objection(json_grammar({}), VOCABULARY) == ""
    process = child.process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=10) == 0
