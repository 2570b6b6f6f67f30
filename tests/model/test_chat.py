"""Chat templates, beside transformers on the same template and messages."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from servekit.errors import ConfigError, RequestError, TemplateError
from servekit.model.chat import ChatTemplate
from tests.model.tiny_tokenizers import byte_level

TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
BLOCKS = """\
  {% if messages[0].role == 'system' %}
    {% set system = messages[0].content %}
  {% endif %}
[{{ system | default('none') | trim }}]
{% for message in messages if message.role != 'system' %}
{{ loop.index0 }} {{ message.role | upper }}: {{ message.content.split('</think>')[-1] }}
{% endfor %}
"""
ALTERNATING = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}[INST] {{ message.content }} [/INST]
    {%- else %} {{ message.content }}{{ eos_token }}{% endif %}
{%- endfor %}
"""
PARTS = """\
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.content is string %}
        {{- message.content | trim }}
    {%- else %}
        {%- for part in message.content if part.type == 'text' %}{{ part.text | trim }}{% endfor %}
    {%- endif %}
{%- endfor %}
"""
ONLY_PARTS = """\
{%- for message in messages %}
    {%- for part in message.content %}
        {%- if part.type == 'text' %}{{ part.text }}{% endif %}
    {%- endfor %}
{%- endfor %}
"""
TOOLS = """\
{%- set found = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set found.last = messages | length - 1 - loop.index0 %}{% break %}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}|{{ tools | tojson(indent=2) }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {{- loop.index0 <= found.last }}{{ message.content }}
    {%- if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}
{%- endfor %}
"""
GENERATION = """\
{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% else %}
{{ message.content }}
{% endif %}
{% endfor %}
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
"""
DATED = "{{ strftime_now('%Y') }} {{ messages[0].content }} {{ date_string | default('x') }}"

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi <b> & \"you\" 'é' 你好"}],
    [
        {"role": "system", "content": " Be kind. "},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>2</think>two"},
        {"role": "user", "content": "thanks\n"},
    ],
    [
        {"role": "user", "content": "q", "name": None},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "x": "<é>"}]},
    ],
]
VARIABLES: list[dict[str, Any]] = [
    {},
    {"tools": [{"name": "clock", "description": "<now> é"}], "enable_thinking": False},
    {"date_string": "1 May", "bos_token": "<mine>"},
]
TEMPLATES = {
    "chatml": CHATML,
    "blocks": BLOCKS,
    "alternating": ALTERNATING,
    "parts": PARTS,
    "tools": TOOLS,
    "generation": GENERATION,
    "dated": DATED,
}


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(), **TOKENS)


def rendered(render: Any) -> str:
    """The prompt, or that there is none."""
    try:
        text: str = render()
    except Exception as error:
        return f"refused: {str(error).rpartition('messages: ')[2]}"
    return text


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_are_those_of_transformers(
    reference: PreTrainedTokenizerFast,
    template: str,
    chat: list[dict[str, Any]],
    variables: dict[str, Any],
    add_generation_prompt: bool,
):
    text = TEMPLATES[template]
    ours = rendered(
        lambda: ChatTemplate(text, TOKENS).render(chat, add_generation_prompt, **variables)
    )
    theirs = rendered(
        lambda: reference.apply_chat_template(
            chat,
            chat_template=text,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **variables,
        )
    )
    assert ours == theirs


def test_the_matrix_has_prompts_and_refusals():
    chat = CHATS[1]
    outcomes = [
        rendered(lambda t=t: ChatTemplate(t, TOKENS).render(chat)) for t in TEMPLATES.values()
    ]
    assert [outcome.startswith("refused") for outcome in outcomes].count(True) == 1


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_template_that_knows_only_text_gets_parts_joined():
    template = ChatTemplate(CHATML, TOKENS)
    assert (template.reads_text, template.reads_parts) == (True, False)
    assert template.render(user([part("a"), part("b")])) == template.render(user("ab"))


def test_a_template_that_prints_lists_as_they_are_gets_text():
    template = ChatTemplate("{{ messages[0].content }}", TOKENS)
    assert template.render(user([part("a"), part("b")])) == "ab"


def test_a_template_that_knows_both_gets_what_was_sent():
    template = ChatTemplate(PARTS, TOKENS)
    assert (template.reads_text, template.reads_parts) == (True, True)
    assert template.render(user([part(" a "), part(" b ")])) == "<user>ab"


def test_a_template_that_knows_only_parts_gets_text_as_one():
    template = ChatTemplate(ONLY_PARTS, TOKENS)
    assert (template.reads_text, template.reads_parts) == (False, True)
    assert template.render(user("whole")) == "whole"


@pytest.mark.parametrize("content", [[{"type": "image_url", "image_url": {}}], ["text"], [{}]])
def test_a_part_that_is_not_text_is_refused_by_its_place(content: list[Any]):
    with pytest.raises(RequestError, match=r"messages\[0\]\.content has a part of type") as caught:
        ChatTemplate(CHATML, TOKENS).render(user(content))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ messages[0].gone.further }}", "'dict object' has no attribute 'gone'"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ 'a' + messages[0].number }}", "TypeError: can only concatenate str"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ range(999999) }}", "OverflowError: Range too big"),
        ("{% include 'other' %}", "TypeError: no loader for this environment"),
    ],
)
def test_what_a_template_raises_is_a_400_in_its_own_words(template: str, message: str):
    with pytest.raises(TemplateError, match="refused the messages: ") as caught:
        ChatTemplate(template, TOKENS).render([{"role": "user", "content": "x", "number": 1}])
    assert message in caught.value.message
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "template_error", "messages")


def test_text_that_is_not_jinja_is_an_error_of_the_configuration():
    with pytest.raises(ConfigError, match=r"is not Jinja: line 2: .*set model\.chat_template"):
        ChatTemplate("\n{% if %}", TOKENS)


def test_the_messages_of_the_client_are_left_as_they_are():
    messages = [{"role": "user", "content": [part("a")], "name": None}]
    ChatTemplate(CHATML, TOKENS).render(messages)
    assert messages == [{"role": "user", "content": [part("a")], "name": None}]
