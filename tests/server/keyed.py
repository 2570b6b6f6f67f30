"""Keys for tests: lines of a file, and headers."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any


def line(key: str, tenant: str = "acme", **more: Any) -> str:
    return json.dumps({"tenant": tenant, "sha256": sha256(key.encode()).hexdigest(), **more})


def key_file(folder: Path, *lines: str) -> str:
    path = folder / "keys.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
