"""Values of keys that a config.json leaves out, by model type, as transformers 5 has them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("defaults.json")


@cache
def _table() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


def defaults_of(model_type: str) -> dict[str, Any]:
    """Empty for a model type that is not in the table."""
    return _table().get(model_type, {})
