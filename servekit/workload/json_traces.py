"""Traces in JSON: Mooncake's and servekit's own, a request a line, and ShareGPT's conversations."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from servekit.config.describe import nearest
from servekit.errors import ConfigError
from servekit.workload import fields
from servekit.workload.trace import Builder, Row

MOONCAKE_BLOCK = 512
"""Tokens that one of its hash ids stands for."""
BYTES_PER_TOKEN = 4
"""Of text whose tokens nobody counted: about what tokenizers of English make; of Chinese, whose
characters take three bytes, about as many."""
ASKS = {"human", "user"}
ANSWERS = {"gpt", "assistant", "chatgpt", "bing", "bard"}


Rows = Callable[[dict[str, Any], Builder, int], Iterable[Row]]
"""Requests of an entry, which has that number; ValueError, or KeyError where a key is missing."""


def read_lines(lines: Iterable[str], builder: Builder) -> None:
    """A JSON object a line; which trace it is, the first one says."""
    rows: Rows | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _object(_parsed(line))
            rows = rows or _format_of(entry, builder.name)
            _add(rows(entry, builder, number), builder)
        except ValueError as error:
            builder.refuse(f"line {number}", error)
        except KeyError as error:
            builder.refuse(f"line {number}", f"no {error.args[0]}")


def read_list(text: str, builder: Builder) -> None:
    """A JSON list of conversations."""
    try:
        entries = _parsed(text)
    except ValueError as error:
        raise ConfigError(
            f"workload.trace={builder.name} begins like a JSON list, but is none: {error}",
            param="workload.trace",
        ) from error
    for number, entry in enumerate(entries, start=1):
        try:
            _add(_conversation(_object(entry), builder, number), builder)
        except ValueError as error:
            builder.refuse(f"entry {number}", error)


def _add(rows: Iterable[Row], builder: Builder) -> None:
    """All requests of an entry, or none where one of them is malformed."""
    found = list(rows)
    if not found:
        builder.drop("no answer")
    for row in found:
        builder.add(row)


def _format_of(entry: dict[str, Any], trace: str) -> Rows:
    for key, rows in FORMATS.items():
        if key in entry:
            return rows
    raise ConfigError(
        f"workload.trace={trace} has the keys {ascii(', '.join(entry))[:200]}, which make no "
        "known trace. Known are Mooncake (timestamp, input_length, output_length, hash_ids), "
        "ShareGPT (conversations) and servekit (arrival_s, input_tokens, output_tokens)",
        param="workload.trace",
    )


def _mooncake(entry: dict[str, Any], builder: Builder, _: int) -> Iterator[Row]:
    builder.block_size = MOONCAKE_BLOCK
    prompt = fields.tokens(entry["input_length"], "input_length")
    yield Row(
        prompt_tokens=prompt,
        output_tokens=fields.tokens(entry["output_length"], "output_length"),
        at=fields.seconds(entry["timestamp"], "timestamp", unit=1e-3),
        blocks=_blocks(entry.get("hash_ids", []), "hash_ids", prompt, MOONCAKE_BLOCK),
    )


def _own(entry: dict[str, Any], builder: Builder, _: int) -> Iterator[Row]:
    """What `write_trace` writes; keys that are not there or null say nothing, and no others are
    known: one that is misspelt would say nothing too.
    """
    if not entry.keys() <= set(OWN_KEYS):
        raise ValueError(_unknown(entry))
    given = {name: value for name, value in entry.items() if value is not None}
    prompt = fields.tokens(entry["input_tokens"], "input_tokens")
    blocks: tuple[str | int, ...] = ()
    if "prefix_hashes" in given:
        size = fields.tokens(entry["block_size"], "block_size")
        builder.block_size = builder.block_size or size
        if size == 0 or size != builder.block_size:
            raise ValueError(f"block_size is {size}, not {builder.block_size or 'more'}")
        blocks = _blocks(given["prefix_hashes"], "prefix_hashes", prompt, size)
    at, session, tenant = (given.get(name) for name in ("arrival_s", "session_id", "tenant"))
    number, slo_class = given.get("priority"), given.get("slo_class")
    yield Row(
        prompt_tokens=prompt,
        output_tokens=fields.tokens(entry["output_tokens"], "output_tokens"),
        at=None if at is None else fields.seconds(at, "arrival_s"),
        session=None if session is None else fields.key(session, "session_id"),
        blocks=blocks,
        tenant=None if tenant is None else str(fields.key(tenant, "tenant")),
        priority=None if number is None else fields.priority(number, "priority"),
        slo_class=None if slo_class is None else fields.slo_class(slo_class, "slo_class"),
    )


OWN_KEYS = (
    *("arrival_s", "input_tokens", "output_tokens", "session_id", "prefix_hashes", "block_size"),
    *("tenant", "priority", "slo_class"),
)


def _unknown(entry: dict[str, Any]) -> str:
    name = next(name for name in entry if name not in OWN_KEYS)
    meant = nearest(name, [key for key in OWN_KEYS if key not in entry])
    rest = f"; did you mean {meant}?" if meant else f"; there are {', '.join(OWN_KEYS)}"
    return f"{ascii(name)[:60]} is no key of this format{rest}"


def _blocks(value: object, name: str, prompt: int, size: int) -> tuple[str | int, ...]:
    blocks = fields.keys(value, name)
    if len(blocks) > -(-prompt // size):
        raise ValueError(
            f"{name} has {len(blocks)} blocks of {size} tokens, but the prompt has {prompt}"
        )
    return blocks


def _conversation(entry: dict[str, Any], _: Builder, number: int) -> Iterator[Row]:
    """Each answer is a request, and its prompt all that was said before."""
    messages = entry.get("conversations")
    if not isinstance(messages, list):
        raise ValueError("no list of conversations")
    said = 0
    asked = False
    for message in messages:
        who, text = (
            message.get(k) if isinstance(message, dict) else None for k in ("from", "value")
        )
        if not (isinstance(who, str) and isinstance(text, str)):
            raise ValueError("a message is no text of somebody (from, value)")
        tokens = math.ceil(len(text.encode(errors="replace")) / BYTES_PER_TOKEN)
        if who in ANSWERS and asked and said:
            yield Row(prompt_tokens=said, output_tokens=tokens, session=number)
            asked = False
        said += tokens
        asked = asked or who in ASKS


FORMATS: dict[str, Rows] = {
    "input_length": _mooncake,
    "input_tokens": _own,
    "conversations": _conversation,
}
"""By a key that entries of no other format have."""


def _object(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")
    return entry


def _parsed(text: str) -> Any:
    """JSON without what Python adds to it; ValueError."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (json.JSONDecodeError, _NoNumber):
        raise
    except ValueError:  # of more digits than Python reads
        raise ValueError("a number in it is too large") from None


class _NoNumber(ValueError):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _NoNumber(f"{name} is not a number")
