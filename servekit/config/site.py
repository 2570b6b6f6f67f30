"""Constants that start-up logs of this site gave, one file for each hardware and parallelism.

They are in $SERVEKIT_SITE, else ~/.config/servekit/site; `servekit plan --from-log` writes them.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from servekit.errors import ConfigError

VARIABLE = "SERVEKIT_SITE"


def folder() -> Path:
    return Path(os.environ.get(VARIABLE) or "~/.config/servekit/site").expanduser()


def file_for(hardware: str, tensor: int, pipeline: int) -> Path:
    name = re.sub(r"[^a-z0-9]+", "_", hardware.lower()).strip("_")
    return folder() / f"{name}_tp{tensor}_pp{pipeline}.json"


def constants_for(hardware: str, tensor: int, pipeline: int) -> dict[str, Any] | None:
    """A tree for `targets.Constants`; None where nothing was stored.

    Raises ConfigError for a file that is no JSON object.
    """
    file = file_for(hardware, tensor, pipeline)
    if not file.is_file():
        return None
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; remove it or store it anew") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{file} holds no JSON object; remove it or store it anew")
    return loaded


def store(constants: dict[str, Any], hardware: str, tensor: int, pipeline: int) -> Path:
    """Writes the file that `constants_for` reads; returns where."""
    file = file_for(hardware, tensor, pipeline)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(constants, indent=2) + "\n", encoding="utf-8")
    return file
