"""A fault in what is done for one request, wherever it is, changes nothing for another."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from servekit.engine.messages import Caller, Sampling
from tests.conftest import tiny_config
from tests.server.conftest import (
    ByteStream,
    ByteTokenizer,
    FakeEngine,
    FakeStream,
    Running,
    chat_body,
    chunks_of,
    eventually,
    says,
)

CHAT = "/v1/chat/completions"
POISON = "poison"
SAID = "all is well " * 8


class FaultyText(ByteStream):
    """Fails on the token of the byte 0."""

    def push(self, ids: Sequence[int]) -> str:
        if 0 in ids:
            raise RuntimeError("a fault of the decoder")
        return super().push(ids)


class Faulty(ByteTokenizer):
    """Fails at one `stage` of the requests whose text says so."""

    stage = ""

    def fail_at(self, stage: str, text: str) -> None:
        if self.stage == stage and POISON in text:
            raise RuntimeError(f"a fault of the {stage}")

    def render_chat(self, messages: Any, *args: Any, **variables: Any) -> str:
        self.fail_at("template", str(messages))
        return super().render_chat(messages, *args, **variables)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.fail_at("tokenizer", text)
        return super().encode(text, add_special_tokens)

    def text_stream(
        self, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> ByteStream:
        return FaultyText(skip_special_tokens)


class FaultyEngine(FakeEngine):
    """Fails where it is given, or in the middle of, the work of a poisoned prompt."""

    stage = ""

    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller) -> FakeStream:
        if self.stage == "submission" and POISON.encode() in bytes(t for t in prompt if t < 256):
            raise RuntimeError("a fault of the channel")
        return super().submit(prompt, sampling, caller)

    def say(self, prompt: list[int], sampling: Sampling) -> list[int]:
        if POISON.encode() not in bytes(token for token in prompt if token < 256):
            return says(SAID)(prompt, sampling)
        if self.stage == "engine":
            raise RuntimeError("a fault of the engine")
        return [*b"some", 0, *b"more"] if self.stage == "text" else says("done")(prompt, sampling)


@pytest.fixture(scope="module")
def faulty(start_server: Callable[..., Running]) -> Running:
    engine = FaultyEngine()
    engine.script = engine.say
    server = start_server(engine, tiny_config())
    server.service.tokenizer = Faulty()
    return server


def ask(server: Running, text: str, stream: bool) -> httpx.Response:
    with server.client() as http:
        return http.post(CHAT, json=chat_body(text, stream=stream))


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200
    chunks = [json.loads(chunk) for chunk in chunks_of(answer.text)[:-1]]
    return "".join(
        choice["delta"].get("content") or "" for one in chunks for choice in one["choices"]
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["template", "tokenizer", "submission", "engine", "text"])
def test_a_fault_at_any_stage_fails_its_own_request_alone(
    faulty: Running, stage: str, stream: bool
) -> None:
    engine: Any = faulty.engine
    engine.stage = faulty.service.tokenizer.stage = stage  # type: ignore[attr-defined]
    engine.step_s, engine.streams = 0.005, []
    with ThreadPoolExecutor(3) as pool:
        before = [pool.submit(ask, faulty, f"neighbour {one}", True) for one in range(2)]
        eventually(lambda: len(engine.streams) == 2)
        bad = ask(faulty, POISON, stream)
        assert engine.num_open >= 2, "the others are still at work"
        assert [text_of(one.result(30)) for one in before] == [SAID, SAID]
    error = json.loads(chunks_of(bad.text)[-2]) if bad.status_code == 200 else bad.json()
    # a stream has begun when its tokens are made into text, and may have when the engine fails
    assert bad.status_code == 500 or (stream and stage in ("engine", "text"))
    assert "error_id" in json.dumps(error)
    assert "a fault of" not in bad.text, "that is for the log"
    eventually(lambda: not faulty.service.generations)
    assert engine.num_open == 0, "what ran for it is given up"
    assert text_of(ask(faulty, "after", True)) == SAID
