"""Flags that Hydra answers itself: `--cfg`, `--info`, `--hydra-help` and tab completion."""

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
        _complete_behind_verb(verbs)
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


def _complete_behind_verb(verbs: Sequence[str]) -> None:
    """Hides the verb in COMP_LINE from Hydra, and offers verbs while the first word is typed.

    The blank after a last word means that a new one begins, so it stays.
    """
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    if len(words) > 1 and words[1] in verbs and line.split(words[1], 1)[1]:
        os.environ["COMP_LINE"] = line.replace(f" {words[1]}", "", 1)
        return
    typed = words[1] if len(words) > 1 else ""
    if len(words) < 2 or (len(words) == 2 and not line.endswith(" ")):
        print("\n".join(verb for verb in verbs if verb.startswith(typed)))
