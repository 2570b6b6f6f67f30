"""Constants that start-up logs of this site gave: a file for each hardware and parallelism.

They are in $SERVEKIT_SITE, else ~/.config/servekit/site; `servekit plan --from-log` writes them. A
file is a JSON object with a tree for `targets.Constants` by model and weight format, the newest
last. What a log says of weights and graphs holds for its own model only; how far the planner's
activations and runtime are off is the engine's and the card's, and carries over.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from servekit.errors import ConfigError

VARIABLE = "SERVEKIT_SITE"
OF_ONE_MODEL = ("weights_ratio", "graphs_gib")


def folder() -> Path:
    return Path(os.environ.get(VARIABLE) or "~/.config/servekit/site").expanduser()


def model_key(name: str, weights: str) -> str:
    """What constants are kept under: a model and the format of its weights."""
    return f"{name} {weights}"


def file_for(hardware: str, tensor: int, pipeline: int) -> Path:
    name = re.sub(r"[^a-z0-9]+", "_", hardware.lower()).strip("_")
    return folder() / f"{name}_tp{tensor}_pp{pipeline}.json"


def constants_for(
    hardware: str, tensor: int, pipeline: int, *, model: str
) -> dict[str, Any] | None:
    """A tree for `targets.Constants`; None where nothing was stored.

    `model` is a model with its weight format. Raises ConfigError for a file that `store` did not
    write.
    """
    file = file_for(hardware, tensor, pipeline)
    if not file.is_file():
        return None
    models = _read(file)
    if model in models:
        return models[model]
    newest = models[list(models)[-1]]
    return {**newest, **dict.fromkeys(OF_ONE_MODEL)}


def store(
    constants: dict[str, Any], hardware: str, tensor: int, pipeline: int, *, model: str
) -> Path:
    """Writes the file that `constants_for` reads, beside what it has of other models.

    Raises ConfigError where there is no room for it or no right to it.
    """
    file = file_for(hardware, tensor, pipeline)
    models = _read(file) if file.is_file() else {}
    models.pop(model, None)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**models, model: constants}, indent=2)
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror or error}; give another folder in "
            f"{VARIABLE}"
        ) from None
    return file


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; remove it or store it anew") from None
    trees = loaded.values() if isinstance(loaded, dict) else ()
    if not trees or not all(isinstance(tree, dict) for tree in trees):
        raise ConfigError(
            f"{file} does not hold constants by model; remove it and store them anew with "
            "servekit plan --from-log"
        )
    models: dict[str, dict[str, Any]] = loaded
    return models
