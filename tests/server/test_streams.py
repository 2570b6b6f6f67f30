"""A stream is the answer that is not streamed, byte for byte, in the order that clients rely on."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.engine.messages import Caller, Delta, Ready, Sampling, Stats, TokenLogprobs
from servekit.model.tokenizer import Tokenizer
from servekit.model.tokenizer_parts import TokenizerParts
from servekit.server.chat import ChatStyle
from servekit.server.completions import CompletionStyle
from servekit.server.generate import Job
from servekit.server.service import Service
from servekit.server.stream import Beside, Style, TokenNames, collect, events
from servekit.server.wire import ChatRequest, CompletionRequest
from tests.conftest import tiny_config
from tests.model.tiny_tokenizers import byte_level, sentencepiece
from tests.server.conftest import FakeEngine, Telling, chunks_of, make_service
from tests.server.test_text import answer_of, cut_by_hand, fed

Body = ChatRequest | CompletionRequest


def tokenizer_of(backend: Any) -> Tokenizer:
    return Tokenizer(TokenizerParts(backend, None, frozenset({0}), {}, {}), {})


TOKENIZERS = [tokenizer_of(byte_level()), tokenizer_of(sentencepiece())]
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass
class Told(Telling):
    """Deltas that are given; a request that is told its end early says nothing more."""

    deltas: list[Delta]
    aborted: bool = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        yield Delta(0, [])
        for delta in self.deltas:
            if self.aborted:
                return
            yield delta
            await asyncio.sleep(0)

    def abort(self) -> None:
        self.aborted = True


@dataclass
class Reciting:
    """An engine that says the same tokens every time, each time in other steps."""

    tokens: list[int]
    finish: str
    cuts: random.Random
    state: str = "ready"
    info: Ready | None = field(default_factory=lambda: FakeEngine().info)
    stats: Stats | None = None

    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller) -> Told:
        size = len(self.tokens)
        places = sorted(self.cuts.sample(range(1, size), self.cuts.randint(0, size - 1)))
        runs = [self.tokens[a:b] for a, b in pairwise([0, *places, size])]
        scored = [[TokenLogprobs(-1.0, []) for _ in run] for run in runs]
        deltas = [
            Delta(0, run, logprobs=logprobs, cached_tokens=3)
            for run, logprobs in zip(runs, scored, strict=True)
        ]
        last = deltas[-1]
        stop = last.tokens[-1] if self.finish == "stop" else None
        end = msgspec.structs.replace(last, finish=self.finish, stop_token=stop)
        return Told([*deltas[:-1], end])


def style_of(body: Body, tokenizer: Tokenizer, n: int) -> Style:
    shared: dict[str, Any] = {
        "id": "id",
        "created": 0,
        "model": "tiny",
        "names": TokenNames(tokenizer),
        "logprobs": True,
        "beside": Beside(usage=True),
    }
    if isinstance(body, ChatRequest):
        return ChatStyle(n=n, **shared)
    return CompletionStyle(echoes=["> "] * n, **shared)


async def both(service: Service, body: Body, n: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The chunks of a stream, and the answer that is not one."""
    assert isinstance(service.tokenizer, Tokenizer)
    style = style_of(body, service.tokenizer, n)
    sampling = Sampling(max_tokens=100, seed=0)
    job = Job("chat", [([1, 2], sampling)], n, service.answer_maker(body), 0.0, Caller())
    said = b"".join([part async for part in events(service, job, style)])
    *chunks, done = chunks_of(said.decode())
    assert done == "[DONE]"
    whole = msgspec.json.encode(await collect(service, job, style))
    return [json.loads(chunk) for chunk in chunks], json.loads(whole)


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str(choice.get("delta", choice.get("message")).get("content", ""))


def check_order(chunks: list[dict[str, Any]], n: int, chat: bool) -> None:
    """Each choice: how it begins, what it says, one finish; then usage, and nothing else."""
    *chunks, last = chunks
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert all(chunk["usage"] is None for chunk in chunks)
    for index in range(n):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        first, *middle, finish = own
        if chat:
            assert first["delta"] == {"role": "assistant", "content": ""}
            assert all(list(choice["delta"]) == ["content"] for choice in middle)
            assert finish["delta"] == {}
        assert text_of(finish) == ""
        assert finish["finish_reason"] in ("stop", "length")
        assert all(choice["finish_reason"] is None for choice in [first, *middle])


def logprobs_of(choices: list[dict[str, Any]]) -> list[Any]:
    """Of chat and of completions, as one list of what there is of each token."""
    found: list[Any] = []
    for logprobs in [choice["logprobs"] for choice in choices if choice["logprobs"]]:
        if "content" in logprobs:
            found += logprobs["content"]
        else:
            found += zip(*logprobs.values(), strict=True)
    return found


@given(
    data=st.data(),
    tokenizer=st.sampled_from(TOKENIZERS),
    finish=st.sampled_from(["stop", "length"]),
)
@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@settings(max_examples=150, deadline=None)
def test_concatenated_deltas_are_the_answer_that_is_not_streamed(
    kind: type[Body], data: st.DataObject, tokenizer: Tokenizer, finish: str
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=24))
    skip = data.draw(st.booleans())
    continues = kind is CompletionRequest
    stream = tokenizer.text_stream(skip, continues)
    spoken = ids[:-1] if finish == "stop" else ids
    text = stream.push(spoken) + stream.finish()
    starts = data.draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=3))
    pieces = [text[start : start + data.draw(st.integers(1, 5))] for start in starts if text]
    stops = [piece + data.draw(st.sampled_from(["", "", "~"])) for piece in pieces]
    include = finish == "length" and data.draw(st.booleans())
    common = {"model": "tiny", "stop": stops or None, "skip_special_tokens": skip}
    given_ = {"prompt": "x"} if kind is CompletionRequest else {"messages": MESSAGES}
    body = kind(**common, **given_, include_stop_str_in_output=include)
    n = data.draw(st.integers(1, 3))
    service, _ = make_service(FakeEngine(), tiny_config())
    service.tokenizer = tokenizer
    service.engine = Reciting(ids, finish, random.Random(data.draw(st.integers(0, 2**32))))
    chunks, whole = asyncio.run(both(service, body, n))
    check_order(chunks, n, chat=kind is ChatRequest)
    begins = "> " if continues else ""
    for index, choice in enumerate(whole["choices"]):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(map(text_of, own)) == text_of(choice)
        assert text_of(choice) == begins + cut_by_hand(text, stops, include)
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1].get("stop_reason") == choice["stop_reason"]
        assert logprobs_of(own) == logprobs_of([choice])
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("stop", ["ö", "b🙂", "🙂c", "cc", "abö", "x"])
def test_a_stop_string_is_found_at_every_split_of_the_bytes(stop: str) -> None:
    text = "aabö🙂cc"
    tokens = list(text.encode())
    expected = cut_by_hand(text, [stop], include=False)
    for size in range(len(tokens)):
        for places in combinations(range(1, len(tokens)), size):
            runs = [tokens[a:b] for a, b in pairwise([0, *places, len(tokens)])]
            pieces = fed(answer_of([stop]), runs)
            assert "".join(piece.text for piece in pieces) == expected
            assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


@pytest.mark.parametrize(
    "data", [b"\xff", b"a\xf0\x9f", b"\xc3(", b"\xf0\x9f\x99\x82\x82", b"\xed\xa0\x80"]
)
def test_bytes_that_are_no_text_stream_as_they_are_answered(data: bytes) -> None:
    tokens = list(data)
    for size in range(len(tokens)):
        for places in combinations(range(1, len(tokens)), size):
            runs = [tokens[a:b] for a, b in pairwise([0, *places, len(tokens)])]
            said = "".join(piece.text for piece in fed(answer_of([]), runs))
            assert said == data.decode(errors="replace")
