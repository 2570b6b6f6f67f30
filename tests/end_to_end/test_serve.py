"""The command as a user starts it: a real model, real processes, the real client."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx
import openai
import psutil
import pytest
from pydantic import BaseModel, Field

from benchmarks.soak import soak
from servekit.config.machine import best_instructions

pytestmark = [pytest.mark.weights, pytest.mark.timeout(300)]

SERVEKIT = str(Path(sys.executable).with_name("servekit"))
RECIPE = "+recipe=chat_smollm2"
MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Served:
    """A running server: its process, its address, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rsplit(" ", 1)[1])
        raise LookupError(name)

    def wait_for_free_cache(self, seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while self.metric("servekit_kv_used_tokens") > 0:
            assert time.monotonic() < deadline, "blocks are still in use"
            time.sleep(0.05)


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    """Starts the command and waits until it says that it is ready."""
    process = subprocess.Popen(
        [SERVEKIT, "serve", "--json", RECIPE, "server.port=0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            said = json.loads(line)
            if said.get("event") == "ready":
                break
        else:
            _, err = process.communicate()
            pytest.fail(f"the server ended with {process.returncode}: {err}")
        yield Served(process, said["url"])
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(smollm2_path: Path) -> Iterator[Served]:
    with serving() as served:
        yield served


def test_a_chat_answer_is_about_what_was_asked(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=32
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_pieces_are_the_whole_answer(served: Served) -> None:
    asked = {"model": MODEL, "messages": QUESTION, "seed": 7, "temperature": 0.8, "max_tokens": 40}
    whole = served.client.chat.completions.create(**asked)
    stream = served.client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_seed_gives_the_same_answer_again(served: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str | None:
        answer = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, seed=seed, temperature=1.0, max_tokens=24
        )
        return answer.choices[0].message.content

    async def in_turn() -> list[str | None]:
        # one after the other: in bfloat16, products of another batch size round otherwise
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            return [await ask(client, seed) for seed in (3, 4, 3, 5, 3)]

    first, other, again, another, third = asyncio.run(in_turn())
    assert first == again == third
    assert len({first, other, another}) > 1


def test_completions_with_logprobs_n_and_stop(served: Served) -> None:
    answer = served.client.completions.create(
        model=MODEL,
        prompt="One, two, three, four,",
        n=3,
        logprobs=2,
        stop=["ten"],
        seed=1,
        max_tokens=48,
        temperature=0.2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert "ten" not in choice.text
        assert choice.logprobs is not None
        assert choice.logprobs.tokens
        assert choice.logprobs.top_logprobs
        assert len(choice.logprobs.top_logprobs[0]) >= 2


def test_chat_logprobs_are_of_the_tokens_said(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
    for one in choice.logprobs.content:
        assert one.top_logprobs[0].token == one.token
        assert one.logprob <= 0


class Person(BaseModel):
    """Bounded, for a small model rambles."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    likes: list[Literal["tea", "coffee", "water"]] = Field(max_length=3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_parses_into_the_model_that_asked_for_it(
    served: Served, temperature: float
) -> None:
    answer = served.client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Ann is 31 and drinks tea. Who is she, as JSON?"}],
        response_format=Person,
        temperature=temperature,
        max_tokens=200,
        seed=1,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_streamed_answers_keep_to_a_regex_and_to_a_choice(served: Served) -> None:
    for field, matches in (
        ({"regex": r"\d{4}-\d{2}-\d{2}"}, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch),
        ({"choice": ["Paris", "London", " Ro me"]}, ["Paris", "London", " Ro me"].__contains__),
    ):
        chunks = served.client.chat.completions.create(
            model=MODEL, messages=QUESTION, extra_body=field, stream=True, n=2, seed=3
        )
        said = ["", ""]
        ends = []
        for chunk in chunks:
            choice = chunk.choices[0]
            said[choice.index] += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
        assert all(map(matches, said)), said
        assert ends == ["stop", "stop"]


def test_too_long_a_prompt_is_refused_with_both_numbers(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="8192") as refused:
        served.client.completions.create(model=MODEL, prompt=[5] * 9000, max_tokens=1)
    assert refused.value.code == "context_length_exceeded"


def test_a_client_that_goes_away_frees_its_blocks(served: Served) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 4000, "stream": True, "n": 4}
    body["ignore_eos"] = True
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        assert served.metric("servekit_kv_used_tokens") > 0
    served.wait_for_free_cache()


def test_streams_with_random_aborts_leave_everything_as_it_was(served: Served) -> None:
    # without AVX-512 a processor computes prompts in bfloat16 at some sixty tokens a second
    streams = 12 if best_instructions() == "avx2" else 64
    # memory that steps of all sizes need is met within half a minute, and compared after that
    report = asyncio.run(soak(served.url, served.process.pid, seconds=60, streams=streams))
    assert report.unterminated == []
    assert report.finished >= 5
    assert report.dropped >= 5
    assert report.blocks_used == 0
    # on a busy machine sizes of steps are still met for the first time late in the minute
    assert report.growth < 0.05


def test_sigterm_lets_a_stream_finish_and_leaves_nothing_behind(smollm2_path: Path) -> None:
    with serving() as served:
        processes = psutil.Process(served.process.pid).children(recursive=True)
        stream = served.client.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=60, stream=True
        )
        next(iter(stream))
        os.kill(served.process.pid, signal.SIGTERM)
        assert [chunk for chunk in stream][-1].choices[0].finish_reason in ("length", "stop")
        assert served.process.wait(30) == 0
        assert psutil.wait_procs(processes, timeout=5)[1] == []


def test_a_gpu_recipe_is_refused_here_at_once() -> None:
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has an NVIDIA GPU")
    started = time.monotonic()
    refused = subprocess.run(
        [SERVEKIT, "+recipe=chat_llama8b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - started < 5
    assert refused.returncode == 2
    assert "FITS" in refused.stdout
    assert "H100" in refused.stderr
    assert "servekit plan" in refused.stderr
