"""The page of `servekit --help`: verbs, recipes and groups, read from file names alone."""

from collections.abc import Mapping

from servekit.config.folders import first_comment, groups, options, search_folders

EXAMPLES = """\
  servekit +recipe=chat_smollm2                           serve it on 127.0.0.1:8000
  servekit +recipe=chat_smollm2 server.port=9000          with one value changed
  servekit plan +recipe=chat_llama8b hardware=l4          would it fit there?
  servekit plan -m kv.block_size=16,32 +recipe=chat_smollm2
  servekit explain scheduler.max_num_seqs +recipe=chat_smollm2
  servekit --config-dir mine +recipe=own                  mine/recipe/own.yaml"""

FLAGS = """\
  --json               machine-readable output
  --config-dir FOLDER  more recipes and groups; SERVEKIT_CONFIG_PATH: folders that come before ours
  -m                   plan every combination of a=1,2 b=3,4
  --cfg job            the composed YAML, before rules and checks; --info: what Hydra did
  -sc install=bash     eval "$(servekit -sc install=bash)" completes words at the prompt
  --version, --help"""


def page(verbs: Mapping[str, str], config_dir: str | None) -> str:
    folders = search_folders(config_dir)
    recipes = {name: first_comment("recipe", name, folders) for name in options("recipe", folders)}
    chosen = {name: ", ".join(options(name, folders)) for name in groups(folders)}
    chosen.pop("recipe", None)
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
            *_columns(chosen),
            "",
            "Flags",
            FLAGS,
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def _columns(rows: Mapping[str, str]) -> list[str]:
    width = max((len(name) for name in rows), default=0)
    return [f"  {name:{width}}  {text}" for name, text in rows.items()]
