"""`servekit keys new`: a key, and the line that lets it in."""

import json
import sys

import msgspec

from servekit.errors import ConfigError
from servekit.server.keys import Key, new_key

NUMBERS = ("max_concurrent", "requests_per_minute", "tokens_per_minute")


def main(words: list[str], options: dict[str, str], as_json: bool) -> int:
    """The key goes to standard error, once; its line to standard output, to be appended to a file.

    Raises ConfigError for words and options that make no key.
    """
    if words != ["new"]:
        raise ConfigError("servekit keys new --tenant NAME makes a key; there is nothing else")
    if "--tenant" not in options:
        raise ConfigError("a key belongs to somebody: servekit keys new --tenant NAME")
    key, line = new_key(options["--tenant"], **_more(options))
    text = msgspec.json.encode(_said(line)).decode()
    if as_json:
        print(json.dumps({"key": key, "line": json.loads(text)}))
        return 0
    print(text)
    sys.stdout.flush()
    sys.stderr.write(f"the key, shown this once: {key}\n")
    return 0


def _more(options: dict[str, str]) -> dict[str, object]:
    more: dict[str, object] = {}
    if (access := options.get("--access")) is not None:
        more["access"] = access.split(",")
    if (name := options.get("--id")) is not None:
        more["id"] = name
    for number in NUMBERS:
        flag = f"--{number.replace('_', '-')}"
        if (value := options.get(flag)) is not None:
            if not value.isdecimal():
                raise ConfigError(f"{flag} is a whole number, not {value!r}")
            more[number] = int(value)
    return more


def _said(line: Key) -> dict[str, object]:
    """Without the limits that there are not."""
    fields = msgspec.structs.asdict(line)
    return {name: value for name, value in fields.items() if value is not None}
