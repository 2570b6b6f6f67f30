"""`servekit diff`: what a change of the configuration does, before anything runs.

servekit diff "+recipe=chat" "+recipe=chat kv.dtype=fp8"     two deployments, in words
servekit diff main HEAD [recipe...]                          every recipe, at two revisions
"""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console

from servekit.config.describe import nearest
from servekit.config.library import RECIPE, Library
from servekit.errors import ConfigError
from servekit.output import write_json
from servekit.planner.diff.difference import Pair, compare
from servekit.planner.diff.markdown import markdown as to_markdown
from servekit.planner.diff.page import page
from servekit.planner.diff.policy import Policy, failures, policies
from servekit.planner.diff.report import Report
from servekit.planner.diff.revisions import recipes, repository, source_at
from servekit.planner.diff.sides import Source, side

USAGE = (
    "diff takes two lists of words, each quoted as one, or two git revisions and names of recipes: "
    "servekit diff '+recipe=a' '+recipe=a kv.dtype=fp8', servekit diff main HEAD"
)


def main(
    words: Sequence[str],
    config_dir: str | None,
    *,
    as_json: bool,
    markdown: bool,
    fail_on: str | None,
) -> int:
    """0, or 2 where a policy of `fail_on` is broken or a configuration is not valid."""
    if as_json and markdown:
        raise ConfigError("--json and --markdown are two formats of one report; give one of them")
    if len(words) < 2:
        raise ConfigError(USAGE)
    given = None if fail_on is None else policies(fail_on)
    before, after, *names = words
    if are_words(before) != are_words(after):
        raise ConfigError(f"{before!r} and {after!r} are words and a revision; {USAGE}")
    if are_words(before):
        if names:
            raise ConfigError(f"after two lists of words comes nothing, here {names[0]!r}; {USAGE}")
        report = of_words(before, after, config_dir, given)
    else:
        report = of_revisions(before, after, names, config_dir, given)
    if as_json:
        write_json(report.to_json())
    elif markdown:
        print(to_markdown(report), end="")
    else:
        Console(highlight=False).print(page(report))
    return report.exit_code


def are_words(argument: str) -> bool:
    """Whether an argument is words of a configuration: none at all, or key=value, +group=option,
    ~key. `HEAD~1`, `v1.0` and `HEAD@{1 day ago}` are revisions."""
    parts = argument.split()
    return not parts or any("=" in part or part[0] in "+~" for part in parts)


def of_words(
    before: str, after: str, config_dir: str | None, given: tuple[Policy, ...] | None
) -> Report:
    """The report on two lists of words."""
    library = Library(config_dir)
    one, two = (side(Source(text, library), _split(text)) for text in (before, after))
    names = [found.composed.config.name for found in (one, two) if found.composed]
    name = " -> ".join(dict.fromkeys(names)) or "both"
    pair = compare(name, one, two)
    return _report(before, after, [pair], given)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} has a quote that is not closed") from error


def of_revisions(
    before: str,
    after: str,
    names: Sequence[str],
    config_dir: str | None,
    given: tuple[Policy, ...] | None,
) -> Report:
    """The report on each recipe, or each that is named, at two revisions."""
    repo = repository(config_dir)
    with ExitStack() as folders:
        sources = [folders.enter_context(source_at(repo, name)) for name in (before, after)]
        there = [recipes(source, repo) for source in sources]
        known = sorted({*there[0], *there[1]})
        if not known:
            raise ConfigError(f"{repo.folder}/{RECIPE} has no recipes at {before} or {after}")
        for name in names:
            _check(name, known)
        pairs = []
        for name in dict.fromkeys(names or known):
            words = [f"+{RECIPE}={name}"]
            one, two = (
                side(source, words) if name in here else None
                for source, here in zip(sources, there, strict=True)
            )
            pairs.append(compare(name, one, two))
    return _report(before, after, pairs, given)


def _check(name: str, known: list[str]) -> None:
    if name not in known:
        meant = nearest(name, known)
        guess = f"did you mean {meant}? There" if meant else "there"
        raise ConfigError(f"no revision has a recipe {name!r}; {guess} are {', '.join(known)}")


def _report(before: str, after: str, pairs: list[Pair], given: tuple[Policy, ...] | None) -> Report:
    broken = {pair.name: tuple(failures(given, pair)) for pair in pairs}
    return Report(before, after, tuple(pairs), broken)
