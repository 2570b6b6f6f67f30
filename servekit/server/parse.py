"""A request body becomes a struct, or an error that points at what is wrong with it.

No field is dropped without a word: one that would have shaped the answer is refused, any other that
has no effect is named in the answer (`ignored`).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from servekit.errors import RequestError, UnsupportedField, UnsupportedMedia
from servekit.server.ignored import IGNORED_FIELDS_HEADER, listed, printable, unknown_inside

JSON_TYPES = ("", "application/json")
"""No content type at all is taken for JSON; `curl -d` without a header says form data."""

Struct = TypeVar("Struct", bound=msgspec.Struct)

CONSTRAINTS = frozenset(
    {
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
        *("guided_decoding_backend", "guided_whitespace_pattern", "grammar", "json_schema"),
        *("regex", "choice", "ebnf", "structural_tag", "allowed_token_ids", "bad_words"),
        *("function_call", "audio", "prediction", "web_search_options", "documents"),
        *("prompt_logprobs", "prompt_embeds", "chat_template", "truncate_prompt_tokens"),
        *("logprob_token_ids", "reasoning_effort", "thinking_token_budget", "cache_salt"),
        *("typical_p", "mirostat", "logits_processors"),
        *("extra_body", "extra_args", "vllm_xargs", "nvext", "sampling_params"),
        *("previous_response_id", "conversation", "reasoning", "moderation", "input"),
        *("prompt", "messages", "max_completion_tokens", "top_logprobs"),
    }
)
"""Fields of this and other servers that change what the answer is or means; the last line is of
those that another route of ours takes."""

HARMLESS: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "functions": ([],),
    "modalities": (["text"],),
    "echo": (False,),
    "best_of": (1,),
    "background": (False,),
    "include": ([],),
    "text": ({},),
    "truncation": ("disabled",),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "continue_final_message": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
}
"""Of more such fields, the values that ask for nothing but what is done anyway."""

REFUSED = CONSTRAINTS | HARMLESS.keys()

CONSTRAINT_LIKE = re.compile(r"guided_|structured_|.*(grammar|schema|regex)")
"""Names that nobody has listed, and that ask for output of a form."""

INSTEAD = {
    "guided_json": "response_format",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "structured_outputs": "response_format",
    "json_schema": "response_format",
}
"""Where a route of ours takes the same under another name, the error says which."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[Struct]):
    """A request and the names of fields that have no effect on its answer."""

    body: Struct
    ignored: tuple[str, ...]

    @property
    def headers(self) -> dict[str, str]:
        return {IGNORED_FIELDS_HEADER: listed(self.ignored)} if self.ignored else {}


@lru_cache
def _decoder(kind: type[Struct]) -> msgspec.json.Decoder[Struct]:
    return msgspec.json.Decoder(kind)


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse(body: bytes, content_type: str, kind: type[Struct]) -> Parsed[Struct]:
    """Raises UnsupportedMedia or RequestError, with a JSON pointer in `param`."""
    if content_type not in JSON_TYPES:
        raise UnsupportedMedia(
            f"the body is {content_type}, this route takes application/json; "
            "set the Content-Type header"
        )
    try:
        given = _fields.decode(body)
        parsed = _decoder(kind).decode(body)
        unknown = [name for name in given if name not in kind.__struct_fields__]
        effective = [name for name in unknown if bytes(given[name]) != b"null"]
        for name in effective:
            if is_refused(name):
                _refuse_unless_harmless(name, given[name], kind)
        inside = unknown_inside(given, kind)
    except msgspec.ValidationError as error:
        raise _schema_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}", param="") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", param="") from None
    ignored = [name for name in effective if not is_refused(name)]
    return Parsed(body=parsed, ignored=(*ignored, *inside))


def is_refused(name: str) -> bool:
    return name in REFUSED or CONSTRAINT_LIKE.match(name) is not None


def _refuse_unless_harmless(name: str, given: msgspec.Raw, kind: type[msgspec.Struct]) -> None:
    if (allowed := HARMLESS.get(name)) and msgspec.json.decode(given) in allowed:
        return
    instead = INSTEAD.get(name)
    known = instead in kind.__struct_fields__
    raise UnsupportedField(
        f"{printable(name)} is not supported by this release on this route, and leaving it out "
        f"would change the answer; send {instead if known else 'the request'} "
        f"{'instead' if known else 'without it'}",
        param=printable(name),
    )


def _schema_error(message: str) -> RequestError:
    message = message.replace(" - at `key` in `$", " in a key - at `$")
    what, _, path = message.partition(" - at `$")
    pointer = json_pointer(path.removesuffix("`"))
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        what = f"the field {missing[1]} is required"
        pointer = f"{pointer}/{missing[1]}"
    where = f" at {pointer}" if pointer else ""
    return RequestError(f"{what}{where}", param=pointer)


def json_pointer(path: str) -> str:
    """RFC 6901 for a msgspec path: `.messages[0].content` is `/messages/0/content`.

    A key of a mapping is not in the path (`[...]`), so the pointer stops above it.
    """
    pointer = ""
    for name, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", path):
        if index == "...":
            break
        pointer += f"/{name or index}"
    return pointer
