"""Flags that Hydra answers itself: `--cfg`, `--info` and tab completion."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import hydra

from servekit.config.compose import load
from servekit.config.folders import builtin_folder
from servekit.config.library import VERSION_BASE, register
from servekit.config.problems import InvalidConfig

COMPLETION = ("-sc", "--shell-completion")
SURE = ("word", "option", "unknown")
OUR_SWITCHES = ("--json", "--multirun", "-m")
"""Flags of ours, without a value, that Hydra's completion does not know."""


def answer(
    flags: Sequence[str], words: Sequence[str], config_dir: str | None, verbs: Sequence[str]
) -> int:
    """Runs Hydra's own command line on the words, with the verb already taken off.

    Raises InvalidConfig where Hydra would stop at the first word it does not know. Values that the
    schema refuses do not matter here: looking at them is what `--cfg` is for.
    """
    register()
    if not any(flag in COMPLETION for flag in flags):
        _check(words, config_dir)
    elif any(word.startswith("query=") for word in words):
        folder = _before_completion(verbs)
        if folder is None:
            return 0
        config_dir = next((path for path in folder if os.path.isdir(path)), None)
    extra = ["--config-dir", os.path.abspath(config_dir)] if config_dir else []
    sys.argv = [sys.argv[0], *flags, *extra, *words]
    run = hydra.main(
        version_base=VERSION_BASE, config_path=str(builtin_folder()), config_name="config"
    )
    run(_nothing)()
    return 0


def _nothing(_: Any) -> None:
    """Hydra's flags never run the task they are given."""


def _check(words: Sequence[str], config_dir: str | None) -> None:
    try:
        load(words, config_dir)
    except InvalidConfig as error:
        sure = [problem for problem in error.problems if problem.kind in SURE and problem.from_word]
        if sure:
            raise InvalidConfig(sure) from None


def _before_completion(verbs: Sequence[str]) -> list[str] | None:
    """Leaves Hydra the words that it knows in COMP_LINE; None if there is nothing for it to do.

    Verb and our own flags are taken out, and verbs offered while the first word is typed. Returns
    the folder of `--config-dir`. The blank after a last word means that a new one begins, so it
    stays.
    """
    head, blank, typed = os.environ.get("COMP_LINE", "").rpartition(" ")
    program, *words = head.split() or [""]
    if not words:
        print("\n".join(verb for verb in verbs if verb.startswith(typed)))
    folder: list[str] = []
    kept: list[str] = []
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            folder = [value] if equals else words[:1]
            words = words if equals else words[1:]
        elif word not in OUR_SWITCHES:
            kept.append(word)
    if kept and kept[0] in verbs and kept.pop(0) == "models":
        return None
    os.environ["COMP_LINE"] = " ".join([program, *kept]) + blank + typed
    return None if typed.startswith("-") else folder
