"""/v1/chat/completions over real HTTP."""

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import EOS, Running, chat_body, chunks_of, says


def answered(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/chat/completions", json=chat_body(**fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    answer = http.post("/v1/chat/completions", json=chat_body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = chunks_of(answer.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(delta.get("content", "") for delta in deltas)


def test_an_answer_has_a_message_a_reason_and_usage(http: httpx.Client) -> None:
    answer = answered(http)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world!", "refusal": None}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == {
        "prompt_tokens": len("user: hi\nassistant: "),
        "completion_tokens": 14,
        "total_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_is_role_then_text_then_one_finish_then_usage(http: httpx.Client) -> None:
    chunks = streamed(http, stream_options={"include_usage": True})
    first, *middle, finish, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"]["content"] for c in middle) == "Hello, world!"
    assert all(c["choices"][0]["finish_reason"] is None for c in [first, *middle])
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 14
    assert all(c["usage"] is None for c in chunks[:-1])
    assert len({c["id"] for c in chunks}) == 1


def test_without_include_usage_no_chunk_has_usage(http: httpx.Client) -> None:
    assert all("usage" not in chunk for chunk in streamed(http))


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", [None, "wor", ["ld", "lo, w"], "never"])
def test_the_stream_is_the_answer_byte_for_byte(
    server: Running, http: httpx.Client, size: int, stop: object
) -> None:
    server.engine.tokens_per_step = size
    server.engine.script = says("Héllo, wörld! 🙂 wor")
    whole = answered(http, stop=stop, logprobs=True)
    chunks = streamed(http, stop=stop, logprobs=True, stream_options={"include_usage": True})
    choice = whole["choices"][0]
    assert text_of(chunks) == choice["message"]["content"]
    finish = chunks[-2]["choices"][0]
    assert finish["finish_reason"] == choice["finish_reason"]
    assert finish["stop_reason"] == choice["stop_reason"]
    assert chunks[-1]["usage"] == whole["usage"]
    scored = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["logprobs"]]
    tokens = [token for c in scored for token in c["logprobs"]["content"]]
    assert tokens == choice["logprobs"]["content"]


def test_a_stop_string_ends_the_engine_request_too(server: Running, http: httpx.Client) -> None:
    server.engine.script = says("Hello, world! and on and on")
    choice = answered(http, stop="wor")["choices"][0]
    assert choice["message"]["content"] == "Hello, "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "wor")
    assert server.engine.streams[0].aborted


def test_a_stop_string_is_kept_where_that_is_asked_for(http: httpx.Client) -> None:
    choice = answered(http, stop="wor", include_stop_str_in_output=True)["choices"][0]
    assert choice["message"]["content"] == "Hello, wor"


def test_length_is_said_when_max_tokens_ends_it(http: httpx.Client) -> None:
    choice = answered(http, max_completion_tokens=5)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "length")


def test_without_a_maximum_all_the_room_left_may_be_filled(
    server: Running, http: httpx.Client
) -> None:
    answered(http)
    assert server.engine.streams[0].sampling.max_tokens == 256 - 20


def test_n_answers_are_seeded_apart_and_their_prompt_counts_once(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script = lambda prompt, sampling: [ord("0") + sampling.seed, EOS]
    server.engine.cached_tokens = 16
    answer = answered(http, n=3, seed=4)
    assert [c["message"]["content"] for c in answer["choices"]] == ["4", "5", "6"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 20
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert answer["usage"]["completion_tokens"] == 6


def test_n_streams_are_told_apart_by_index(server: Running, http: httpx.Client) -> None:
    server.engine.script = lambda prompt, sampling: [*(f"say {sampling.seed}".encode()), EOS]
    chunks = streamed(http, n=3, seed=4)
    assert [text_of(chunks, index) for index in range(3)] == ["say 4", "say 5", "say 6"]
    finishes = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finishes) == [0, 1, 2]


def test_two_requests_without_a_seed_are_drawn_apart(server: Running, http: httpx.Client) -> None:
    answered(http)
    answered(http)
    first, second = server.engine.streams
    assert first.sampling.seed != second.sampling.seed


def test_logprobs_have_bytes_and_alternatives_and_no_infinity(http: httpx.Client) -> None:
    choice = answered(http, logprobs=True, top_logprobs=2, max_tokens=1)["choices"][0]
    (token,) = choice["logprobs"]["content"]
    assert token == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "a", "logprob": -9999.0, "bytes": [97]},
            {"token": "b", "logprob": -2.0, "bytes": [98]},
        ],
    }


def test_without_logprobs_there_are_none(http: httpx.Client) -> None:
    assert answered(http)["choices"][0]["logprobs"] is None


def test_end_of_sequence_stops_unless_it_is_ignored(server: Running, http: httpx.Client) -> None:
    answered(http)
    answered(http, ignore_eos=True, stop_token_ids=[65])
    usual, ignoring = server.engine.streams
    assert usual.sampling.stop_token_ids == [257, 258]
    assert ignoring.sampling.stop_token_ids == [65]


def test_every_sampling_field_reaches_the_engine(server: Running, http: httpx.Client) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -1.0,
        "frequency_penalty": 2.0,
        "min_tokens": 3,
        "max_tokens": 9,
        "seed": 11,
    }
    answered(http, **fields, logit_bias={"65": -100}, logprobs=True, top_logprobs=4)
    sampling = server.engine.streams[0].sampling
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert sampling.logit_bias == {65: -100.0}
    assert sampling.logprobs == 4


def test_text_parts_and_null_fields_are_taken(server: Running, http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "hi"}]
    answer = http.post(
        "/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [{"role": "user", "content": parts}],
            "temperature": None,
            "tools": None,
            "stop": None,
        },
    )
    assert answer.status_code == 200
    assert "servekit-ignored-fields" not in answer.headers


def test_special_tokens_are_shown_where_that_is_asked_for(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script = lambda prompt, sampling: [256, *b"hi", EOS]
    assert answered(http)["choices"][0]["message"]["content"] == "hi"
    shown = answered(http, skip_special_tokens=False)
    assert shown["choices"][0]["message"]["content"] == "<bos>hi"


def test_an_error_after_the_first_byte_is_a_chunk_and_then_done(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script = says("Hello, world! " * 10)
    server.engine.step_s = 0.02
    with http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if '"content":"H"' in line)
        server.engine.state = "dead"
        rest = [line.removeprefix("data: ") for line in lines if line]
    error = json.loads(rest[-2])["error"]
    assert (error["code"], error["type"]) == ("engine_died", "server_error")
    assert rest[-1] == "[DONE]"


@pytest.mark.parametrize(("code", "status"), [("queue_full", 429), ("engine_error", 500)])
@pytest.mark.parametrize("stream", [True, False])
def test_what_the_engine_refuses_at_once_is_a_status_even_for_a_stream(
    server: Running, http: httpx.Client, code: str, status: int, stream: bool
) -> None:
    server.engine.refusal = ("no", code, None)
    answer = http.post("/v1/chat/completions", json=chat_body(stream=stream))
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert ("retry-after" in answer.headers) == (status == 429)
