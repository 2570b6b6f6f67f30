"""`servekit simulate`: what clients of a deployment would see, before there is one."""

import json
from collections.abc import Sequence
from pathlib import Path

from servekit.config.schema import Config
from servekit.simulator.compare import compare
from servekit.simulator.progress import progress
from servekit.simulator.record import Comparison, Report, Run
from servekit.simulator.report import report
from servekit.simulator.run import simulate
from servekit.simulator.words import Load, alternatives, check_page, count, take_files
from servekit.workload.moments import moments

SEEDS = 3
ANSWERED = 200_000
"""Tokens of answers in a run, where nobody says how many requests: a few seconds."""
REQUESTS = (200, 3000)
"""And no fewer and no more requests than these."""


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
    seeded = range(1, (count("--seeds", seeds) or SEEDS) + 1)
    asked = count("--requests", requests)
    if html is not None:
        check_page(html)
    if varied is not None:
        key, options = alternatives(varied, words, load)
        each = asked or min(requests_for(option.config) for option in options)
        with progress(each * len(seeded) * len(options)) as ended:
            found = compare(key, options, requests=each, seeds=seeded, ended=ended)
        return _show_comparison(found, options[0].config, as_json, html)
    rest, step_time = take_files(words)
    config = load(rest)
    each = asked or requests_for(config)
    with progress(each * len(seeded)) as ended:
        runs = [
            simulate(config, requests=each, seed=seed, step_time=step_time, ended=ended)
            for seed in seeded
        ]
    return _show(report(config.name, runs), runs[0], as_json, html)


def requests_for(config: Config) -> int:
    """As many as take a few seconds; of a trace all, if they are fewer."""
    work = moments(config.workload)
    least, most = REQUESTS
    number = max(least, min(most, round(ANSWERED / work.output, -2)))
    return int(number if work.requests is None else min(number, work.requests))


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
