"""Messages become the prompt of a chat: checked, rendered by the template, tokenised."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from servekit.errors import RequestError, TemplateError, UnsupportedField
from servekit.server import ignored
from servekit.server.limits import MAX_MESSAGES, MAX_PARTS
from servekit.server.service import THREAD_ABOVE_CHARACTERS, Service, Tokenizer
from servekit.server.wire import ChatRequest, TokenizeRequest

MARK = "\ue000continue\ue001"
"""Of characters that nobody uses; where a client does, what it sends is refused."""

TOOL_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "-"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
        ],
    },
]
"""What comes before the answer of a tool."""

MESSAGE_CHARACTERS = 128
"""What a message costs a template, beside its text, in characters of text."""

OWN_VARIABLES = {"messages", "add_generation_prompt", "tools", "documents"}
"""Variables of a template that are not set through chat_template_kwargs."""


def checked_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, if they have the form that any template can take.

    Roles are the template's business; what it refuses is an error with its own words.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"{len(messages)} messages, at most {MAX_MESSAGES}", param="messages")
    for index, message in enumerate(messages):
        _check_message(message, f"/messages/{index}")
    return messages


def _check_message(message: dict[str, Any], pointer: str) -> None:
    if not isinstance(message.get("role"), str):
        raise RequestError("a message needs a role, a string", param=f"{pointer}/role")
    content = message.get("content")
    if isinstance(content, list):
        if len(content) > MAX_PARTS:
            raise RequestError(
                f"{len(content)} content parts, at most {MAX_PARTS}", param=f"{pointer}/content"
            )
        for index, part in enumerate(content):
            _check_part(part, f"{pointer}/content/{index}")
    elif content is None and not message.get("tool_calls"):
        raise RequestError("a message needs content", param=f"{pointer}/content")
    elif not isinstance(content, str | None):
        raise RequestError(
            "content is a string or a list of text parts", param=f"{pointer}/content"
        )


def _check_part(part: object, pointer: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RequestError("a content part is an object with a type", param=pointer)
    if part["type"] != "text":
        raise UnsupportedField(
            f"content parts of type {part['type']!r} are not supported by this release, only text",
            param=pointer,
        )
    if not isinstance(part.get("text"), str):
        raise RequestError("a text part needs text, a string", param=f"{pointer}/text")


def chat_roles(tokenizer: Tokenizer) -> list[str]:
    """Roles whose text gets into the prompt; a template may refuse one, or leave it out."""
    probe = "a probe of roles"
    said = {"content": probe}
    turns: dict[str, list[dict[str, Any]]] = {
        "system": [{"role": "system", **said}, {"role": "user", "content": "-"}],
        "user": [{"role": "user", **said}],
        "assistant": [{"role": "user", "content": "-"}, {"role": "assistant", **said}],
        "tool": [*TOOL_TURNS, {"role": "tool", "tool_call_id": "call00001", "name": "f", **said}],
    }
    taken = []
    for role, messages in turns.items():
        with suppress(TemplateError):
            if probe in tokenizer.render_chat(messages):
                taken.append(role)
    return taken


def unread_by_template(body: msgspec.Struct, service: Service) -> list[str]:
    """Of the messages, if there are any; raises RequestError for those that no template takes."""
    if not isinstance(body, ChatRequest | TokenizeRequest) or body.messages is None:
        return []
    variables = body.chat_template_kwargs or {}
    names = service.loaded.template_names | OWN_VARIABLES
    return [*ignored.unread(checked_messages(body.messages), variables, names)]


def chat_text(body: ChatRequest | TokenizeRequest, service: Service) -> str:
    """The conversation as the template writes it.

    Where the last message is to be continued, the text ends with it. Where that is, is found by a
    mark behind it, so that it does not matter what the template does with the message before.
    """
    messages, variables = checked_messages(body.messages or []), body.chat_template_kwargs or {}
    if not body.continue_final_message:
        return service.loaded.render_chat(
            messages, add_generation_prompt=body.add_generation_prompt is not False, **variables
        )
    if body.add_generation_prompt:
        raise RequestError(
            "continue_final_message goes on with the last message, add_generation_prompt begins "
            "a new one; send one of them",
            param="continue_final_message",
        )
    text = service.loaded.render_chat(
        [*messages[:-1], _marked(messages[-1])], add_generation_prompt=False, **variables
    )
    if text.count(MARK) != 1:
        raise TemplateError(
            "the chat template of this model does not write the last message as it is, so it "
            "cannot be continued; leave out continue_final_message",
            param="continue_final_message",
        )
    return text[: text.index(MARK)]


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """With MARK behind its text."""
    if message["role"] != "assistant" or not message.get("content"):
        raise RequestError(
            "continue_final_message needs a last message of the assistant with content",
            param="continue_final_message",
        )
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + MARK}
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last["text"] + MARK}]}


async def chat_tokens(body: ChatRequest | TokenizeRequest, service: Service) -> list[int]:
    """The template owns the special tokens, so none are added unless that is asked for."""
    variables = body.chat_template_kwargs or {}
    if taken := OWN_VARIABLES & variables.keys():
        raise RequestError(
            f"chat_template_kwargs has {', '.join(sorted(taken))}, which the request itself says",
            param="chat_template_kwargs",
        )
    # a request to generate must fit; who only counts tokens may count more
    param = "messages" if isinstance(body, ChatRequest) else None
    if length(body.messages or []) > THREAD_ABOVE_CHARACTERS:
        text = await asyncio.to_thread(chat_text, body, service)
    else:
        text = chat_text(body, service)
    return await service.encode(text, bool(body.add_special_tokens), param)


def length(messages: list[dict[str, Any]]) -> int:
    """About how many characters the template has to deal with."""
    return sum(
        MESSAGE_CHARACTERS + len(content)
        if isinstance(content := message.get("content"), str)
        else MESSAGE_CHARACTERS + sum(len(part["text"]) for part in content or ())
        for message in messages
    )
