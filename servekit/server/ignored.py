"""Fields that have no effect on an answer: where they stand, and what is done about them.

By default they are named in the `servekit-ignored-fields` header of the answer; with
`server.unknown_fields=refuse`, or that word in the request's own `servekit-unknown-fields` header,
they are an error.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import msgspec

from servekit.errors import RequestError, UnsupportedField

IGNORED_FIELDS_HEADER = "servekit-ignored-fields"
UNKNOWN_FIELDS_HEADER = "servekit-unknown-fields"
WAYS = ("name", "refuse")
MAX_NAME = 64
MAX_HEADER = 1024
"""Characters of names in the header; how many more there are is said after them."""

MESSAGE_KEYS = frozenset({"role", "content"})
"""What every template is given; any other key of a message has an effect if the template has it."""

PART_KEYS = frozenset({"type", "text"})

LOST = {
    "tool_calls": "the chat template of this model does not read tool_calls, so that what the "
    "assistant asked for would be lost; send the turn as text",
    "prefix": "prefix is not supported; to have the last message continued, send "
    "continue_final_message: true beside the messages",
}
"""Keys of a message that would change the answer, where the template does not look at them."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


@lru_cache
def inner_structs(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Fields of `kind` that are objects with fields of their own, and take others too."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for one in (hint, *get_args(hint)):
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                found[name] = one
    return {
        name: one for name, one in found.items() if not one.__struct_config__.forbid_unknown_fields
    }


def unknown_inside(given: Mapping[str, msgspec.Raw], kind: type[msgspec.Struct]) -> list[str]:
    """Dotted names of what objects within the body have and our struct of them has not."""
    found: list[str] = []
    for name, inner in inner_structs(kind).items():
        raw = bytes(given.get(name, b"null"))
        if raw.startswith(b"{"):
            below = _object.decode(raw)
            unknown = [key for key in below if key not in inner.__struct_fields__]
            found += [f"{name}.{key}" for key in unknown if bytes(below[key]) != b"null"]
            found += [f"{name}.{key}" for key in unknown_inside(below, inner)]
    return found


def unread(
    messages: Iterable[Mapping[str, Any]],
    variables: Mapping[str, Any],
    template_names: frozenset[str],
) -> Iterator[str]:
    """Dotted names of what the chat template is given and does not look at.

    Raises UnsupportedField for what would be LOST.
    """
    for index, message in enumerate(messages):
        for name, value in message.items():
            if value is None or name in MESSAGE_KEYS or name in template_names:
                continue
            if name in LOST and value:
                raise UnsupportedField(LOST[name], param=f"/messages/{index}/{name}")
            yield f"messages.{index}.{name}"
        if isinstance(content := message.get("content"), Sequence) and not isinstance(content, str):
            for place, part in enumerate(content):
                for name in sorted(part.keys() - PART_KEYS):
                    yield f"messages.{index}.content.{place}.{name}"
    for name in variables:
        if name not in template_names:
            yield f"chat_template_kwargs.{name}"


def way_of(header: str | None, configured: str) -> str:
    """What the request says, else the deployment; raises RequestError for any other word."""
    if header is None:
        return configured
    if header not in WAYS:
        raise RequestError(
            f"the header {UNKNOWN_FIELDS_HEADER} is {printable(header)!r}, it may be "
            f"{' or '.join(WAYS)}",
            param=UNKNOWN_FIELDS_HEADER,
        )
    return header


def refuse(names: Sequence[str]) -> None:
    """Raises UnsupportedField, where there are any."""
    if names:
        raise UnsupportedField(
            f"unknown fields are refused here, and this request has {listed(names)}; "
            "send it without",
            param=names[0],
        )


def listed(names: Sequence[str]) -> str:
    """As many as the header holds, and how many more there are."""
    said: list[str] = []
    length = 0
    for name in map(printable, names):
        length += len(name) + 2
        if length > MAX_HEADER:
            return ", ".join([*said, f"and {len(names) - len(said)} more"])
        said.append(name)
    return ", ".join(said)


def printable(name: str) -> str:
    """A name from the client as part of a header: ASCII, no separators, not endless."""
    return re.sub(r"[^\w.\-]", "?", name, flags=re.ASCII)[:MAX_NAME]
