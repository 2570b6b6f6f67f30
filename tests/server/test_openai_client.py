"""The `openai` client, as released, drives everything."""

from collections.abc import Iterator

import openai
import pytest

from tests.server.conftest import EOS, Running

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, stop=["!"], n=2, seed=1, logprobs=True, top_logprobs=1
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello, world"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].token == "H"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_streamed_by_the_helper_that_accumulates(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, stream_options={"include_usage": True}, logprobs=True
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == "Hello, world!"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == 14


def test_completions(server: Running, client: openai.OpenAI) -> None:
    server.engine.script = lambda prompt, sampling: [prompt[-1], EOS]
    answer = client.completions.create(model="tiny", prompt=["a", "b"], logprobs=2, echo=False)
    assert [choice.text for choice in answer.choices] == ["a", "b"]
    assert answer.choices[0].logprobs.tokens == ["a"]


def test_completions_streamed(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="tiny", prompt="hi", stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == "Hello, world!"
    assert chunks[-1].usage.prompt_tokens == 3


def test_responses(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="hi", instructions="be brief")
    assert (response.output_text, response.status) == ("Hello, world!", "completed")
    assert response.usage.input_tokens_details.cached_tokens == 0
    more = client.responses.create(
        model="tiny", input=[*response.output, {"role": "user", "content": "and?"}]
    )
    assert more.usage.input_tokens > 10


def test_responses_streamed(client: openai.OpenAI) -> None:
    deltas = []
    with client.responses.create(model="tiny", input="hi", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
    assert "".join(deltas) == "Hello, world!"
    assert event.type == "response.completed"
    assert event.response.output_text == "Hello, world!"


def test_responses_streamed_by_the_helper_that_accumulates(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="hi") as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "Hello, world!"
    assert final.usage.output_tokens == 14


def test_a_response_that_fails_is_told_to_the_client(
    server: Running, client: openai.OpenAI
) -> None:
    server.engine.step_s = 0.02
    stream = client.responses.create(model="tiny", input="hi", stream=True)
    next(stream)
    server.engine.state = "dead"
    *_, last = stream
    assert (last.type, last.response.error.code) == ("response.failed", "engine_died")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"temperature": -1}, openai.BadRequestError),
        ({"model": "gpt"}, openai.NotFoundError),
    ],
)
def test_errors_are_those_the_client_knows(
    client: openai.OpenAI, fields: dict[str, object], kind: type[openai.APIStatusError]
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **fields})
    assert caught.value.param == next(iter(fields))


def test_an_engine_that_dies_in_a_stream_raises_in_the_client(
    server: Running, client: openai.OpenAI
) -> None:
    server.engine.step_s = 0.02
    stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    next(stream)
    server.engine.state = "dead"
    with pytest.raises(openai.APIError, match="the engine process is gone"):
        list(stream)
