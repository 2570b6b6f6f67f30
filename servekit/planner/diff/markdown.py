"""`servekit diff` as one comment of a pull request: the same text for the same change, always."""

from collections.abc import Iterator, Sequence

from servekit.planner.diff.difference import Pair
from servekit.planner.diff.report import Report
from servekit.planner.diff.text import (
    changed,
    headline,
    label_of,
    reasons,
    rows,
    shares,
    single_cause,
    unmoved,
    verdict_now,
)


def markdown(report: Report) -> str:
    """Ends in a newline. What does not change is folded at the end."""
    same = [pair for pair in report.pairs if pair.status == "unchanged"]
    different = [pair for pair in report.pairs if pair.status != "unchanged"]
    lines = [
        f"## servekit diff: {_code(label_of(report.before))} → {_code(label_of(report.after))}"
    ]
    lines += ["", _summary(different, report.pairs), *_refused(report)]
    for pair in different:
        lines += ["", *_pair(pair)]
    if same:
        lines += ["", *_folded(same)]
    return "\n".join(lines) + "\n"


def _summary(different: Sequence[Pair], every: Sequence[Pair]) -> str:
    if not different:
        return "Nothing that is deployed changes."
    return f"{len(different)} of {len(every)} deployment{'s' * (len(every) != 1)} changed."


def _refused(report: Report) -> Iterator[str]:
    if report.exit_code:
        yield ""
        yield "**Refused by policy**"
        yield ""
    for name, found in report.broken.items():
        for policy, reason in found:
            yield f"- {_code(name)}: {_code(policy)}, {_text(reason)}"


def _pair(pair: Pair) -> Iterator[str]:
    verdict = headline(pair).replace(" -> ", " → ")
    yield f"### {_text(pair.name)}: {verdict}"
    if said := list(reasons(pair)):
        yield ""
        yield from (f"{'  ' if line.startswith('  ') else ''}- {_text(line)}" for line in said)
    if pair.leaves:
        yield from ("", "| changed | from → to | written in |", "|---|---|---|")
        for key, values, origin in changed(pair):
            cells = _code(key), _code(values.replace(" -> ", " → ")), _text(origin)
            yield f"| {' | '.join(cells)} |"
    if pair.changes:
        yield from _effect(pair)
    yield from _from(pair)
    if pair.notes:
        yield ""
        yield "**Take care**"
        yield ""
        yield from (f"- {_text(note)}" for note in pair.notes)


def _effect(pair: Pair) -> Iterator[str]:
    table = rows(pair)
    if not table:
        if unmoved(pair):
            yield ""
            yield "No number of the plan changes."
        return
    yield ""
    yield "| | before | after | change | band | |"
    yield "|---|--:|--:|--:|--:|---|"
    for row in table:
        judged = f"**{row.judgement}**" if row.judgement == "worse" else row.judgement
        cells = row.label, row.before, row.after, row.change, row.band, judged
        yield f"| {' | '.join(cells)} |"


def _from(pair: Pair) -> Iterator[str]:
    if effects := shares(pair):
        yield from ("", "| because of | |", "|---|---|")
        yield from (f"| {_code(cause)} | {effect} |" for cause, effect in effects)
    elif (cause := single_cause(pair)) is not None:
        yield from ("", f"All of it comes from {_code(cause)}.")
    if pair.idle:
        yield from ("", f"No effect on the plan: {', '.join(map(_code, pair.idle))}.")


def _folded(same: Sequence[Pair]) -> Iterator[str]:
    count = f"{len(same)} deployment{'s' * (len(same) != 1)} unchanged"
    yield from (f"<details><summary>{count}</summary>", "")
    for pair in same:
        yield f"- {_code(pair.name)}: {verdict_now(pair)}"
    yield from ("", "</details>")


def _code(text: str) -> str:
    """As code within a table: no pipe, no line break, no backtick of its own."""
    flat = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{flat}`"


def _text(text: str) -> str:
    """As plain words: what markdown or HTML would read otherwise is escaped."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{sign}" if sign in "\\`*[]|~" else sign for sign in flat)
