"""The page of `servekit --help`: verbs, recipes and groups, read from file names alone."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

from servekit.config.folders import first_comment, groups, options, search_folders

EXAMPLES = """\
  servekit +recipe=chat_smollm2                           serve it on 127.0.0.1:8000
  servekit +recipe=chat_smollm2 server.port=9000          with one value changed
  servekit plan +recipe=chat_llama8b hardware=l4          would it fit there?
  servekit plan -m kv.block_size=16,32 +recipe=chat_smollm2
  servekit diff "+recipe=chat_llama8b" "+recipe=chat_llama8b kv.dtype=fp8"
  servekit simulate +recipe=chat_llama8b --compare scheduler=static,continuous
  servekit diff main HEAD --fail-on does_not_fit,slo      every recipe at two git revisions
  servekit explain scheduler.max_num_seqs +recipe=chat_smollm2
  servekit --config-dir mine +recipe=own                  mine/recipe/own.yaml"""

FLAGS: dict[str, str] = {
    "--json": "machine-readable output",
    "--config-dir FOLDER": "more recipes and groups; SERVEKIT_CONFIG_PATH: folders before ours",
    "-m": "plan: every combination of a=1,2 b=3,4 in one table",
    "--explain": "plan: each formula with its numbers",
    "--from-log FILE": "plan: learn this site's constants from a start-up log",
    "--fail-on POLICIES": "diff: exit 2 on does_not_fit, slo, cost>10% ...",
    "--markdown": "diff: for a review",
    "--compare KEY=A,B": "simulate: the same requests through each",
    "--html FILE": "simulate: a page of figures",
    "--requests N": "simulate: of each run",
    "--seeds K": "simulate: runs with other random numbers",
    "--tenant NAME": "keys: new: whose key",
    "--id NAME": "keys: new: what it is called in metrics and in the ledger",
    "--access CLASSES": "keys: new: inference, admin or both",
    "--max-concurrent N": "keys: new: answers at once",
    "--requests-per-minute N": "keys: new: requests let in",
    "--tokens-per-minute N": "keys: new: tokens of prompts and answers",
    "--cfg job": "the composed YAML, before rules and checks; --info: what Hydra did",
    "-sc install=bash": 'eval "$(servekit -sc install=bash)" completes words at the prompt',
    "--version, --help": "of a verb: servekit VERB --help",
}
"""What each does; behind the name of the one verb that takes it, if it is one."""

COMPOSED = "[+recipe=NAME] [group=OPTION ...] [key=value ...]"
WORDS = {
    "diff": "A B   (words of a configuration in quotes, or git revisions)",
    "explain": f"KEY {COMPOSED}",
    "models": "[fetch NAME_OR_SOURCE | inspect FILE.gguf_OR_FOLDER]",
    "keys": "new --tenant NAME",
    "doctor": "",
}
"""What stands behind a verb whose words are not simply a configuration."""

COMPOSING = ("--config-dir", "--cfg", "-sc")
"""Flags of every verb whose words are a configuration."""


def recipes_and_groups(config_dir: str | None) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Recipes with their first lines; groups with their options."""
    folders = search_folders(config_dir)
    recipes = {name: first_comment("recipe", name, folders) for name in options("recipe", folders)}
    return recipes, {name: options(name, folders) for name in groups(folders) if name != "recipe"}


def to_json(verbs: Mapping[str, str], config_dir: str | None) -> dict[str, Any]:
    recipes, chosen = recipes_and_groups(config_dir)
    return {"verbs": dict(verbs), "recipes": recipes, "groups": chosen}


def page(verbs: Mapping[str, str], config_dir: str | None) -> str:
    recipes, chosen = recipes_and_groups(config_dir)
    return "\n".join(
        [
            "servekit: one configuration plans, checks and serves a large language model.",
            "",
            "  servekit [VERB] [+recipe=NAME] [group=OPTION ...] [key=value ...] [FLAGS]",
            "",
            "Verbs",
            *_columns(verbs),
            "",
            "Recipes",
            *_columns(recipes),
            "",
            "Groups",
            *_columns({name: ", ".join(names) for name, names in chosen.items()}),
            "",
            "Flags",
            *_columns(FLAGS),
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def verb_page(name: str, phrase: str, composes: bool, config_dir: str | None) -> str:
    """`servekit VERB --help`: what it does, takes and chooses from."""
    recipes, chosen = recipes_and_groups(config_dir)
    own = {
        flag: text.removeprefix(f"{name}: ")
        for flag, text in FLAGS.items()
        if text.startswith(f"{name}: ")
        or flag == "--json"
        or (composes and flag.split()[0] in COMPOSING)
    }
    examples = [line for line in EXAMPLES.splitlines() if line.startswith(f"  servekit {name} ")]
    usage = " ".join(["servekit", name, *filter(None, [WORDS.get(name, COMPOSED)]), "[FLAGS]"])
    lines = [f"servekit {name}: {phrase}", "", f"  {usage}"]
    lines += ["", "Flags", *_columns(own)]
    if composes:
        lines += ["", "Recipes", *_columns(recipes)]
        lines += ["", "Groups", *_columns({key: ", ".join(all) for key, all in chosen.items()})]
    if examples:
        lines += ["", "Examples", *examples]
    return "\n".join(lines)


def _columns(rows: Mapping[str, str]) -> list[str]:
    """Names and texts side by side; a long text goes on below itself."""
    width = max((len(name) for name in rows), default=0)
    room = max(40, min(shutil.get_terminal_size((100, 24)).columns, 120) - width - 4)
    return [
        f"  {name if first else '':{width}}  {line}"
        for name, text in rows.items()
        for first, line in _lines(text, room)
    ]


def _lines(text: str, room: int) -> list[tuple[bool, str]]:
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [(place == 0, line) for place, line in enumerate(lines)]
