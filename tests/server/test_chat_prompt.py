"""Messages to a prompt: continued messages, roles, template variables."""

from typing import Any

import httpx
import pytest

from servekit.errors import RequestError, TemplateError
from servekit.model.chat import ChatTemplate
from servekit.server.chat_prompt import chat_roles, chat_text
from servekit.server.limits import DEFAULT_SAMPLING
from servekit.server.wire import ChatRequest
from tests.conftest import tiny_config
from tests.server.conftest import ByteTokenizer, FakeEngine, Running, chat_body, make_service

CHATML = (
    "{% for one in messages %}<|im_start|>{{ one.role }}\n{{ one.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("one.content", "one.content | trim")
PARTS = CHATML.replace(
    "{{ one.content }}", "{% for part in one.content %}{{ part.text }}{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + CHATML
)
SILENT = (
    "{% for one in messages if one.role in ('user', 'assistant') %}{{ one.content }}{% endfor %}"
)
WITHOUT_LAST = "{% for one in messages[:-1] %}{{ one.content }}{% endfor %}"


class Templated(ByteTokenizer):
    def __init__(self, source: str) -> None:
        self.template = ChatTemplate(source, {})
        self.template_names = self.template.names

    def render_chat(
        self, messages: Any, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        return self.template.render(messages, add_generation_prompt, **variables)


def text_of(source: str, *contents: Any, **fields: Any) -> str:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": one} for role, one in zip(roles, contents, strict=False)]
    service, _ = make_service(FakeEngine(), tiny_config())
    service.tokenizer = Templated(source)
    body = ChatRequest(model="tiny", messages=messages, **fields)
    return chat_text(body, service)


@pytest.mark.parametrize("source", [CHATML, TRIMMING, PARTS])
@pytest.mark.parametrize("said", ["The answer is", "The answer is ", "a\n", "<|im_end|>\n"])
def test_a_continued_message_ends_the_prompt_as_it_was_given(source: str, said: str) -> None:
    begun = text_of(source, "hi", "", add_generation_prompt=False).removesuffix("<|im_end|>\n")
    text = text_of(source, "hi", said, continue_final_message=True)
    assert text == begun + said


def test_a_continued_message_may_come_in_parts() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two "}]
    assert text_of(PARTS, "hi", parts, continue_final_message=True).endswith("\none two ")


@pytest.mark.parametrize(
    ("contents", "fields"),
    [
        (("hi",), {}),
        (("hi", ""), {}),
        (("hi", "so"), {"add_generation_prompt": True}),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(
    contents: tuple[str, ...], fields: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refused:
        text_of(CHATML, *contents, continue_final_message=True, **fields)
    assert refused.value.param == "continue_final_message"


def test_a_template_that_leaves_the_last_message_out_cannot_continue_it() -> None:
    with pytest.raises(TemplateError, match="cannot be continued"):
        text_of(WITHOUT_LAST, "hi", "so", continue_final_message=True)


def test_a_continued_answer_is_only_what_is_new(server: Running, http: httpx.Client) -> None:
    messages = [*chat_body()["messages"], {"role": "assistant", "content": "Well"}]
    body = {"model": "tiny", "messages": messages, "continue_final_message": True}
    usual = server.service.tokenizer
    try:
        server.service.tokenizer = Templated(CHATML)
        answer = http.post("/v1/chat/completions", json=body).json()
        shown = http.post("/tokenize", json=body).json()
    finally:
        server.service.tokenizer = usual
    assert answer["choices"][0]["message"]["content"] == "Hello, world!"
    assert bytes(server.engine.streams[0].prompt).endswith(b"<|im_start|>assistant\nWell")
    assert shown["tokens"] == server.engine.streams[0].prompt


@pytest.mark.parametrize(
    ("source", "roles"),
    [
        (CHATML, ["system", "user", "assistant", "tool"]),
        (NO_SYSTEM, ["user", "assistant", "tool"]),
        (SILENT, ["user", "assistant"]),
    ],
)
def test_roles_are_those_whose_text_the_template_writes(source: str, roles: list[str]) -> None:
    assert chat_roles(Templated(source)) == roles


def test_a_role_that_the_template_refuses_is_refused_in_its_words(
    server: Running, http: httpx.Client
) -> None:
    usual = server.service.tokenizer
    try:
        server.service.tokenizer = Templated(NO_SYSTEM)
        messages = [{"role": "system", "content": "be brief"}, *chat_body()["messages"]]
        answer = http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    finally:
        server.service.tokenizer = usual
    assert answer.status_code == 400
    assert "System role not supported" in answer.json()["error"]["message"]


def test_variables_reach_the_template() -> None:
    source = CHATML + "{% if enable_thinking is false %}<think></think>{% endif %}"
    text = text_of(source, "hi", chat_template_kwargs={"enable_thinking": False})
    assert text.endswith("assistant\n<think></think>")
    assert text_of(CHATML, "hi", add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_the_model_card_shows_roles_and_what_is_sampled_where_nothing_is_said(
    server: Running, http: httpx.Client
) -> None:
    (card,) = http.get("/v1/models").json()["data"]
    assert card["roles"] == ["system", "user", "assistant"]
    http.post("/v1/chat/completions", json=chat_body())
    sampling = server.engine.streams[0].sampling
    shown = {**card["default_sampling"]}
    assert "generation_config.json" in shown.pop("origin")
    assert {name: getattr(sampling, name) for name in shown} == shown
    assert card["default_sampling"] == DEFAULT_SAMPLING
