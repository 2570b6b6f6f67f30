"""The words and flags of `servekit simulate`: files, options to compare, counts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from servekit.config.schema import Config
from servekit.errors import ConfigError
from servekit.scheduler.settings import StepTime
from servekit.simulator.calibrate import calibrate
from servekit.simulator.compare import Option

Load = Callable[[list[str]], Config]

MOST = {"--requests": 10_000_000, "--seeds": 1000}
"""Of a flag: days of simulating, and more than is ever meant."""
CLOSES = {"{": "}", "[": "]", "(": ")"}
QUOTES = "'\""


def count(flag: str, given: str | None) -> int | None:
    """Raises ConfigError."""
    if given is None:
        return None
    shown, most = given if len(given) <= 30 else f"{given[:27]}...", MOST[flag]
    digits = given.lstrip("0") if given.isdecimal() else ""
    if not digits:
        raise ConfigError(f"{flag} {shown}: it is a whole number of at least 1")
    if len(digits) > len(str(most)) or int(digits) > most:
        raise ConfigError(f"{flag} {shown}: it is {most:,} at most")
    return int(digits)


def take_files(words: Sequence[str]) -> tuple[list[str], StepTime | None]:
    """Words that name files of their own: `calibration=FILE` is a step log, `workload=FILE` a
    trace; the group's options of these names come first.
    """
    rest: list[str] = []
    step_time = None
    for word in words:
        key, _, value = word.partition("=")
        if key == "calibration" and Path(value).is_file():
            step_time = calibrate(Path(value))
        elif key == "workload" and Path(value).is_file():
            quoted = str(Path(value).resolve()).replace("\\", "\\\\").replace("'", "\\'")
            rest.append(f"workload.trace='{quoted}'")
        elif key in ("calibration", "workload") and _looks_like_a_file(value):
            raise ConfigError(f"{word}: there is no file {value}")
        else:
            rest.append(word)
    return rest, step_time


def _looks_like_a_file(value: str) -> bool:
    return "/" in value or bool(Path(value).suffix)


def alternatives(varied: str, words: Sequence[str], load: Load) -> tuple[str, list[Option]]:
    """Of `--compare key=a,b,...`: the key, and each option, which may be a file as in words."""
    key, equals, values = varied.partition("=")
    names = split(values, varied)
    if not equals or not key or len(names) < 2 or not all(names):
        raise ConfigError(
            f"--compare {varied} needs a key and two values or more, such as "
            "scheduler=static,continuous"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"--compare {varied} has a value twice")
    others, step_time = take_files([word for word in words if word.partition("=")[0] != key])
    options = []
    for name in names:
        own, measured = take_files([f"{key}={name}"])
        options.append(Option(name, load([*others, *own]), measured or step_time))
    return key, options


def split(values: str, varied: str) -> list[str]:
    """At commas that are in no braces, brackets or quotes."""
    parts, open_until, quote, start = [], [], "", 0
    for place, letter in enumerate(values):
        if quote:
            quote = "" if letter == quote and values[place - 1] != "\\" else quote
        elif letter in QUOTES:
            quote = letter
        elif letter in CLOSES:
            open_until.append(CLOSES[letter])
        elif open_until and letter == open_until[-1]:
            open_until.pop()
        elif letter == "," and not open_until:
            parts.append(values[start:place].strip())
            start = place + 1
    if quote or open_until:
        missing = quote or open_until[-1]
        raise ConfigError(f"--compare {varied} lacks a {missing} that ends what was begun")
    return [*parts, values[start:].strip()]


def check_page(html: str) -> None:
    """Raises ConfigError now where a page could not be written after a long run."""
    path = Path(html)
    try:
        if path.is_dir():
            raise ConfigError(f"--html {html}: it is a folder; name a file in it")
        if not path.resolve().parent.is_dir():
            raise ConfigError(f"--html {html}: there is no folder {path.parent}")
        if path.exists() and not path.is_file():
            return  # to open a pipe may wait, or end what reads it
        _try_to_write(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--html {html}: it cannot be written: {why}") from error


def _try_to_write(path: Path) -> None:
    """What is there stays; a file that was not there is gone again."""
    existed = path.exists()
    with path.open("ab"):
        pass
    if not existed:
        os.unlink(path)
