"""/v1/responses: the same generation as a chat, asked and told in the words of that API.

    input, instructions ─▶ messages ─▶ the job of a chat ─▶ pieces ─▶ typed events, or one response

Nothing is stored, so a response cannot be fetched, nor be what another one follows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from servekit.engine.messages import Caller
from servekit.errors import RequestError, UnsupportedField
from servekit.server.chat import chat_job
from servekit.server.forms import TextOptions
from servekit.server.generate import Job
from servekit.server.service import Service
from servekit.server.wire import ChatRequest, ResponsesRequest, SamplingFields

Message = dict[str, Any]

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS = ("input_text", "output_text", "text")
ITEM_KEYS = frozenset({"type", "role", "content", "id", "status"})
PART_KEYS = frozenset({"type", "text", "annotations", "logprobs"})
"""What items of an earlier response have too, when they are sent as input again."""

OURS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""What the fields of a chat are called on this route, where an error points at one."""


def messages_of(body: ResponsesRequest) -> list[Message]:
    """`instructions` and `input` as a conversation; raises RequestError where that is none."""
    messages = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    if not body.input:
        raise RequestError("input is an empty list; send at least one item", param="input")
    return [*messages, *(_message(item, f"/input/{i}") for i, item in enumerate(body.input))]


def _message(item: Message, pointer: str) -> Message:
    if (kind := item.get("type", "message")) != "message":
        raise UnsupportedField(
            f"input items of type {kind!r} are not supported by this release, only messages",
            param=f"{pointer}/type",
        )
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(
            f"an input item needs a role, one of {', '.join(ROLES)}", param=f"{pointer}/role"
        )
    content = item.get("content")
    if isinstance(content, list):
        parts = [_text(part, f"{pointer}/content/{i}") for i, part in enumerate(content)]
        content = [{"type": "text", "text": text} for text in parts]
    elif not isinstance(content, str):
        raise RequestError(
            "content is a string or a list of text parts", param=f"{pointer}/content"
        )
    return {"role": ROLES[role], "content": content}


def _text(part: object, pointer: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RequestError("a content part is an object with a type", param=pointer)
    if part["type"] not in TEXT_PARTS:
        raise UnsupportedField(
            f"content parts of type {part['type']!r} are not supported by this release, only text",
            param=pointer,
        )
    if not isinstance(part.get("text"), str):
        raise RequestError("a text part needs text, a string", param=f"{pointer}/text")
    return str(part["text"])


def without_effect(body: ResponsesRequest) -> Iterator[str]:
    """Dotted names of what such a request may have and we do not look at."""
    if body.store:
        yield "store"
    items: Sequence[Message] = () if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        yield from (f"input.{index}.{name}" for name in item if name not in ITEM_KEYS)
        content = item.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                names = [name for name in part if name not in PART_KEYS]
                yield from (f"input.{index}.content.{place}.{name}" for name in names)


async def response_job(
    body: ResponsesRequest, service: Service, arrived: float, caller: Caller
) -> Job:
    """Raises RequestError in the words of this route."""
    if body.n not in (None, 1):
        raise RequestError("a response is one answer; leave out n", param="n")
    for name in ("max_tokens", "response_format"):
        if getattr(body, name) is not None:
            raise RequestError(f"{name} is called {OURS[name]} here", param=name)
    shared = {name: getattr(body, name) for name in SamplingFields.__struct_fields__}
    shared["response_format"] = (body.text or TextOptions()).response_format
    chat = ChatRequest(
        **shared, messages=messages_of(body), max_completion_tokens=body.max_output_tokens
    )
    try:
        return await chat_job(chat, service, arrived, caller)
    except RequestError as error:
        error.param = OURS.get(error.param or "", error.param)
        for theirs in ("max_completion_tokens", "response_format"):
            error.message = error.message.replace(theirs, OURS[theirs])
        raise


def described(body: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request, with what holds where nothing was said."""
    return {
        "model": body.model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "metadata": body.metadata or {},
        "text": body.text or TextOptions(),
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "truncation": "disabled",
        "background": False,
    }
