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

from pydantic import ValidationError

from servekit.config.paths import expanded, is_there, read_text
from servekit.config.targets import Constants
from servekit.errors import ConfigError

VARIABLE = "SERVEKIT_SITE"
OF_ONE_MODEL = ("weights_ratio", "graphs_gib")
ANEW = "remove it and store them anew with servekit plan --from-log"


def folder() -> Path:
    return expanded(os.environ.get(VARIABLE) or "~/.config/servekit/site")


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
    models = _read(file_for(hardware, tensor, pipeline))
    if not models:
        return None
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
    models = _read(file)
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
    """Trees by model; none where there is no file. Raises ConfigError for what `store` did not
    write."""
    try:
        if not is_there(file):
            return {}
        loaded = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{file} cannot be read: {reason}; remove it, give another folder in {VARIABLE}, or "
            "plan without it by calibration=none"
        ) from None
    if not loaded or not isinstance(loaded, dict):
        raise ConfigError(f"{file} does not hold constants by model; {ANEW}")
    for model, tree in loaded.items():
        try:
            Constants.model_validate(tree, strict=True)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise ConfigError(
                f"{file} does not hold constants by model: {key or 'what is there'} of {model!r} "
                f"is wrong; {ANEW}"
            ) from None
    models: dict[str, dict[str, Any]] = loaded
    return models
