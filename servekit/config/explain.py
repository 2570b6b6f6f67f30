"""`servekit explain KEY`: a value, its meaning, and where it came from."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from servekit.config.compose import Composed, load
from servekit.config.derive import RULES
from servekit.config.describe import allowed, field_at, nearest_key, unit
from servekit.config.origins import Origin, leaves, select
from servekit.config.problems import shown
from servekit.errors import ConfigError


def main(words: Sequence[str], config_dir: str | None, as_json: bool) -> int:
    """The one word that sets nothing is a key or a group; without one, everything is shown."""
    keys = [word for word in words if not set(word) & set("=+~")]
    if len(keys) > 1:
        raise ConfigError(f"explain takes one key or group, and {' and '.join(keys)} are several")
    key = keys[0] if keys else ""
    composed = load([word for word in words if word != key], config_dir)
    entries = explain(composed, key)
    if as_json:
        alone = len(entries) == 1 and entries[0]["key"] == key
        sys.stdout.write(json.dumps(entries[0] if alone else entries, indent=2) + "\n")
    elif len(entries) == 1:
        sys.stdout.write(_page(entries[0]))
    else:
        sys.stdout.write(_table(entries))
    return 0


def explain(composed: Composed, key: str) -> list[dict[str, Any]]:
    """What there is to say about a key, or about every key of a group; "" is all of them.

    Raises ConfigError with the nearest name for a key that does not exist.
    """
    tree = composed.config.model_dump(mode="json")
    values = dict(leaves(tree))
    found = [name for name in values if not key or name == key or name.startswith(key + ".")]
    if not found:
        raise ConfigError(_no_such_key(key, tree), param=key)
    return [_entry(name, values[name], tree, composed.origins) for name in found]


def _no_such_key(key: str, tree: Mapping[str, Any]) -> str:
    if field_at(key, tree) is not None:
        parent = key.rpartition(".")[0]
        if select(tree, tuple(parent.split("."))) is None:
            return f"{parent} is null here, so there is no {key}; see servekit explain {parent}"
        return f"{key} exists, but not for the kind of {parent} chosen here"
    meant = nearest_key(key)
    return f"there is no key {key!r}" + (f"; did you mean {meant}?" if meant else "")


def _entry(
    key: str, value: Any, tree: Mapping[str, Any], origins: Mapping[str, Origin]
) -> dict[str, Any]:
    field = field_at(key, tree)
    assert field is not None, f"{key} came from the schema"
    origin = origins[key] if key in origins else origins[key.rpartition(".")[0]]
    chain = []
    before = origin.replaced
    while before is not None:
        chain.append({"value": before.value, "kind": before.kind, "where": before.where})
        before = before.replaced
    return {
        "key": key,
        "value": value,
        "meaning": field.description,
        "unit": unit(key, field),
        "allowed": allowed(key, tree) + (', or "auto"' if key in RULES else ""),
        "origin": {"kind": origin.kind, "where": origin.where},
        "replaced": chain,
    }


def _page(entry: dict[str, Any]) -> str:
    verb = "derived:" if entry["origin"]["kind"] == "derived" else "from"
    lines = [
        f"{entry['key']} = {_text(entry['value'])}",
        *([f"  meaning   {entry['meaning']}"] if entry["meaning"] else []),
        *([f"  unit      {entry['unit']}"] if entry["unit"] else []),
        f"  allowed   {entry['allowed']}",
        f"  origin    {verb} {entry['origin']['where']}",
        *(f"  replaced  {_text(old['value'])} from {old['where']}" for old in entry["replaced"]),
    ]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _table(entries: Sequence[dict[str, Any]]) -> str:
    rows = [
        (f"{entry['key']} = {_line(entry['value'])}", entry["origin"]["where"]) for entry in entries
    ]
    width = min(60, max(len(left) for left, _ in rows))
    return "".join(f"{left:{width}}  {right}\n" for left, right in rows)


def _line(value: Any) -> str:
    return shown(value)[1:-1] if isinstance(value, str) else shown(value)
