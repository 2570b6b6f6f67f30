"""/v1/completions, /tokenize, /detokenize and /v1/models over real HTTP."""

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import BOS, EOS, Running, chunks_of, says


def answered(http: httpx.Client, prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(http: httpx.Client, prompt: Any = "hi", **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "prompt": prompt, "stream": True, **fields}
    *chunks, done = chunks_of(http.post("/v1/completions", json=body).text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def test_an_answer_is_text(http: httpx.Client) -> None:
    answer = answered(http)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Hello, world!",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [[BOS, 104, 105]]),
        ([104, 105], [[104, 105]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_a_prompt_comes_in_four_forms(
    server: Running, http: httpx.Client, prompt: Any, expected: list[list[int]]
) -> None:
    answered(http, prompt)
    assert [stream.prompt for stream in server.engine.streams] == expected


def test_without_a_maximum_sixteen_tokens_are_generated(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script = says("x" * 50)
    assert answered(http)["choices"][0]["text"] == "x" * 16


def test_a_batch_of_prompts_times_n_is_indexed_prompt_by_prompt(
    server: Running, http: httpx.Client
) -> None:
    server.engine.script = lambda prompt, sampling: [prompt[-1], ord("0") + sampling.seed, EOS]
    answer = answered(http, ["a", "b"], n=2, seed=1)
    assert [c["text"] for c in answer["choices"]] == ["a1", "a2", "b1", "b2"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 4


def test_echo_begins_with_the_prompt_as_it_was_given(http: httpx.Client) -> None:
    assert answered(http, "hi ", echo=True)["choices"][0]["text"] == "hi Hello, world!"
    chunks = streamed(http, "hi ", echo=True)
    assert "".join(c["text"] for chunk in chunks for c in chunk["choices"]) == "hi Hello, world!"


def test_a_stream_ends_with_a_finish_and_a_usage_chunk(http: httpx.Client) -> None:
    *text, finish, usage = streamed(http, stream_options={"include_usage": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in text) == "Hello, world!"
    assert (finish["choices"][0]["text"], finish["choices"][0]["finish_reason"]) == ("", "stop")
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 3 + 14


def test_logprobs_are_four_lists_of_one_length(server: Running, http: httpx.Client) -> None:
    server.engine.script = says("hé", end=None)
    assert answered(http, logprobs=1)["choices"][0]["logprobs"] == {
        "tokens": ["h", "\ufffd", "\ufffd"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [
            {"a": -9999.0, "h": -0.5},
            {"a": -9999.0, "bytes:\\xc3": -0.5},
            {"a": -9999.0, "bytes:\\xa9": -0.5},
        ],
        "text_offset": [0, 1, 1],
    }


def test_tokenize_and_detokenize_are_each_others_inverse(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "hé", "add_special_tokens": False}).json()
    assert tokens == {"count": 3, "max_model_len": 256, "tokens": [104, 195, 169]}
    text = http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text == {"prompt": "hé"}


def test_tokenize_renders_messages_as_chat_does(server: Running, http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    shown = http.post("/tokenize", json={"messages": messages}).json()
    http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert server.engine.streams[0].prompt == shown["tokens"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/livez", "/readyz", "/metrics"])
def test_head_answers_as_get_does_without_a_body(http: httpx.Client, path: str) -> None:
    get, head = http.get(path), http.head(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_models_says_what_is_served_and_how_long(http: httpx.Client) -> None:
    (card,) = http.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 256)
    assert http.get("/v1/models/tiny").json() == card
    assert http.get("/v1/models/org/other").json()["error"]["code"] == "model_not_found"
