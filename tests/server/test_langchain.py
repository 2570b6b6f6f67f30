"""LangChain's ChatOpenAI, as released, talks to a running server."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from tests.server.conftest import Running

Chat = Callable[..., ChatOpenAI]


@pytest.fixture
def chat(server: Running, monkeypatch: pytest.MonkeyPatch) -> Chat:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")

    def made(**options: Any) -> ChatOpenAI:
        url = f"{server.url}/v1"
        return ChatOpenAI(model="tiny", base_url=url, api_key="none", max_retries=0, **options)

    return made


def test_a_conversation_is_answered(server: Running, chat: Chat) -> None:
    said = [SystemMessage("be brief"), HumanMessage("hi"), AIMessage("hello"), HumanMessage("so?")]
    answer = chat(temperature=0).invoke(said, stop=["!"])
    assert answer.content == "Hello, world"
    assert answer.usage_metadata["output_tokens"] == len("Hello, world!")
    assert answer.response_metadata["finish_reason"] == "stop"
    prompt = bytes(server.engine.streams[0].prompt).decode()
    assert prompt == "system: be brief\nuser: hi\nassistant: hello\nuser: so?\nassistant: "


def test_a_conversation_is_streamed(chat: Chat) -> None:
    chunks = list(chat(stream_usage=True).stream("hi"))
    assert "".join(chunk.content for chunk in chunks) == "Hello, world!"
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["output_tokens"] == 14


def test_the_responses_api_is_taken_too(chat: Chat) -> None:
    answer = chat(use_responses_api=True).invoke("hi")
    assert answer.text == "Hello, world!"
