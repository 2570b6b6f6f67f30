"""`servekit simulate`: what clients of a deployment would see, before there is one."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from servekit.config.schema import Config
from servekit.errors import ConfigError
from servekit.scheduler.settings import StepTime
from servekit.simulator.calibrate import calibrate
from servekit.simulator.compare import compare
from servekit.simulator.record import Comparison, Report, Run
from servekit.simulator.report import report
from servekit.simulator.run import simulate
from servekit.workload.moments import moments

SEEDS = 3
ANSWERED = 200_000
"""Tokens of answers in a run, where nobody says how many requests: a few seconds."""
REQUESTS = (200, 3000)
"""And no fewer and no more requests than these."""

Load = Callable[[list[str]], Config]


def main(
    words: Sequence[str],
    load: Load,
    *,
    as_json: bool,
    requests: str | None = None,
    seeds: str | None = None,
    html: str | None = None,
    varied: str | None = None,
) -> int:
    """Prints a page, or JSON; with `html` writes one as well. Raises ConfigError."""
    rest, step_time = take_files(words)
    count = _count("--seeds", seeds) or SEEDS
    numbers = range(1, count + 1)
    if html is not None and not Path(html).resolve().parent.is_dir():
        raise ConfigError(f"--html {html}: there is no folder {Path(html).parent}")
    if varied is not None:
        key, options = alternatives(varied, rest, load)
        each = _count("--requests", requests) or requests_for(options[0][1])
        found = compare(key, options, requests=each, seeds=numbers, step_time=step_time)
        return _show_comparison(found, options[0][1], as_json, html)
    config = load(rest)
    each = _count("--requests", requests) or requests_for(config)
    runs = [simulate(config, requests=each, seed=seed, step_time=step_time) for seed in numbers]
    return _show(report(config.name, runs), runs[0], as_json, html)


def requests_for(config: Config) -> int:
    """As many as take a few seconds; of a trace all, if they are fewer."""
    work = moments(config.workload)
    least, most = REQUESTS
    count = max(least, min(most, round(ANSWERED / work.output, -2)))
    return int(count if work.requests is None else min(count, work.requests))


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


def alternatives(
    varied: str, words: Sequence[str], load: Load
) -> tuple[str, list[tuple[str, Config]]]:
    """Of `--compare key=a,b,...`: the key, and each option's configuration."""
    key, equals, values = varied.partition("=")
    names = [name.strip() for name in values.split(",")]
    if not equals or not key or len(names) < 2 or not all(names):
        raise ConfigError(
            f"--compare {varied} needs a key and two values or more, such as "
            "scheduler=static,continuous"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"--compare {varied} has a value twice")
    others = [word for word in words if word.partition("=")[0] != key]
    return key, [(name, load([*others, f"{key}={name}"])) for name in names]


def _count(flag: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise ConfigError(f"{flag} {given}: it is a whole number of at least 1")
    return int(given)


def _show(shown: Report, run: Run, as_json: bool, html: str | None) -> int:
    if html is not None:
        from servekit.simulator.pages.html import write

        write(Path(html), [(shown.name, run, shown)])
    if as_json:
        from servekit.simulator.pages.report_json import report_json

        print(json.dumps(report_json(shown, run.config), indent=2))
    else:
        from servekit.simulator.pages.terminal import show

        show(shown, run.config)
    return 0


def _show_comparison(found: Comparison, config: Config, as_json: bool, html: str | None) -> int:
    if html is not None:
        from servekit.simulator.pages.html import write

        write(Path(html), list(zip(found.names, found.runs, found.reports, strict=True)), found)
    if as_json:
        from servekit.simulator.pages.report_json import comparison_json

        print(json.dumps(comparison_json(found, config), indent=2))
    else:
        from servekit.simulator.pages.compare_page import show

        show(found, config)
    return 0
