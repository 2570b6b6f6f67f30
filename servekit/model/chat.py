"""Messages to prompt text, by the Jinja template that comes with a model.

The environment is the one chat templates are written for (that of `transformers`): sandboxed,
blocks trimmed, loop controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`,
and a transparent `{% generation %}` block.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from servekit.errors import ConfigError, RequestError, TemplateError

Message = Mapping[str, Any]

_PROBE = "probe of servekit"


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; serving renders it as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template; rendering it is thread-safe.

    Content may be text or a list of text parts. A template made for one of the two gets that one:
    parts are joined without a separator for a template that only knows text, text becomes one part
    for a template that only knows parts. Which it is, is tried once, on a conversation of one turn.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: `bos_token`, `eos_token` and so on, as the template names them.

        Raises ConfigError for text that is not a template.
        """
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template is not Jinja: line {error.lineno}: {error.message}; "
                "set model.chat_template to one that is",
                param="model.chat_template",
            ) from error
        self.names = _names(source)
        parts = self._probe([{"type": "text", "text": _PROBE}])
        self.reads_text = _PROBE in self._probe(_PROBE)
        # A template that knows only text may also print the list as it is, brackets and all.
        self.reads_parts = _PROBE in parts and re.search(r"[\"']type[\"']", parts) is None

    def render(
        self,
        /,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt; `variables` are what else the template reads (`enable_thinking`, ...).

        Raises TemplateError with the template's own words if it refuses the messages, RequestError
        for content that is not text.
        """
        plain = [self._message(index, message) for index, message in enumerate(messages)]
        try:
            return self._render(
                plain,
                {
                    **variables,
                    "tools": tools,
                    "documents": documents,
                    "add_generation_prompt": add_generation_prompt,
                },
            )
        except Exception as error:  # a template is a program that runs on the client's input
            raise TemplateError(
                f"the chat template of this model refused the messages: {_reason(error)}",
                param="messages",
            ) from error

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        return self._template.render({**self._special_tokens, **variables, "messages": messages})

    def _message(self, index: int, message: Message) -> dict[str, Any]:
        """Without null fields (templates print them as None), content in the form it reads."""
        plain = {key: value for key, value in message.items() if value is not None}
        content = plain.get("content")
        if isinstance(content, str) and self.reads_parts and not self.reads_text:
            plain["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, Sequence) and not isinstance(content, str):
            texts = [_text(index, part) for part in content]
            parts = [{"type": "text", "text": text} for text in texts]
            plain["content"] = parts if self.reads_parts else "".join(texts)
        return plain

    def _probe(self, content: Any) -> str:
        """What a conversation of one turn with such content looks like; "" if it is refused."""
        variables = {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._render([{"role": "user", "content": content}], variables)
        except Exception:  # see render
            return ""


def _names(source: str) -> frozenset[str]:
    """Variables, attributes and strings of a template: a key that is none of them is not read."""
    tree = _environment().parse(source)
    return frozenset(
        [
            *(one.name for one in tree.find_all(nodes.Name)),
            *(one.attr for one in tree.find_all(nodes.Getattr)),
            *(one.value for one in tree.find_all(nodes.Const) if isinstance(one.value, str)),
        ]
    )


def _text(index: int, part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise RequestError(
            f"messages[{index}].content has a part of type {kind!r}; this model reads text, so "
            'every part must be {"type": "text", "text": "..."}',
            param="messages",
        )
    return text


def _reason(error: Exception) -> str:
    """A template's own message bare, anything else with its kind."""
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
