"""Every chunk of every stream keeps to the shape that the API gives it."""

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.server.conftest import Running, chat_body, chunks_of, says

COUNT = {"type": "integer", "minimum": 0}
FINISH = {"enum": ["stop", "length", None]}
USAGE = {
    "type": ["object", "null"],
    "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
    "properties": {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": {"required": ["cached_tokens"]},
    },
}


def chunk(kind: str, choice: dict[str, Any]) -> Draft202012Validator:
    """A reason to finish is always there, null until it comes, and comes without more content."""
    required = ["index", "finish_reason", *choice["required"]]
    properties = {"index": COUNT, "finish_reason": FINISH, **choice["properties"]}
    return Draft202012Validator(
        {
            "type": "object",
            "required": ["id", "object", "created", "model", "choices"],
            "properties": {
                "id": {"type": "string", "minLength": 1},
                "object": {"const": kind},
                "created": COUNT,
                "model": {"const": "tiny"},
                "choices": {
                    "type": "array",
                    "items": {"required": required, "properties": properties},
                },
                "usage": USAGE,
            },
            "if": {"properties": {"choices": {"maxItems": 0}}},
            "then": {"required": ["usage"], "properties": {"usage": {"type": "object"}}},
        }
    )


DELTA = {
    "type": "object",
    "properties": {"role": {"const": "assistant"}, "content": {"type": "string"}},
    "additionalProperties": False,
}
SHAPES = {
    "/v1/chat/completions": chunk(
        "chat.completion.chunk", {"required": ["delta"], "properties": {"delta": DELTA}}
    ),
    "/v1/completions": chunk(
        "text_completion", {"required": ["text"], "properties": {"text": {"type": "string"}}}
    ),
}
BODIES = {"/v1/chat/completions": chat_body(), "/v1/completions": {"model": "tiny", "prompt": "a"}}
WORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "usage": {"stream_options": {"include_usage": True}},
    "several answers and a stop": {
        "n": 3,
        "stop": "wor",
        "stream_options": {"include_usage": True},
    },
    "cut": {"max_tokens": 3},
    "nothing said": {"stop": "H"},
}


@pytest.mark.parametrize("path", SHAPES)
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("size", [1, 3, 50])
def test_every_chunk_has_the_shape_of_the_api(
    server: Running, http: httpx.Client, path: str, words: dict[str, Any], size: int
) -> None:
    server.engine.script, server.engine.tokens_per_step = says("Hello, world! \N{SNOWMAN}"), size
    answer = http.post(path, json={**BODIES[path], **words, "stream": True})
    *chunks, done = chunks_of(answer.text)
    assert done == "[DONE]"
    told = [json.loads(chunk) for chunk in chunks]
    for one in told:
        SHAPES[path].validate(one)
    assert len({(one["id"], one["created"]) for one in told}) == 1, "one answer, one name"
    finishes = [
        choice["index"] for one in told for choice in one["choices"] if choice["finish_reason"]
    ]
    assert sorted(finishes) == list(range(words.get("n", 1)))


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_the_chunk_that_finishes_a_chat_answer_says_nothing_more(
    server: Running, http: httpx.Client, words: dict[str, Any]
) -> None:
    server.engine.tokens_per_step = 3
    answer = http.post("/v1/chat/completions", json=chat_body(**words, stream=True))
    last = [
        choice["delta"]
        for chunk in chunks_of(answer.text)[:-1]
        for choice in json.loads(chunk)["choices"]
        if choice["finish_reason"]
    ]
    assert last == [{}] * words.get("n", 1)
