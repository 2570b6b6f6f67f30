"""Many plans as one table: a row for each list of words, what is wrong with them below it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servekit.errors import ConfigError
from servekit.output import write_json
from servekit.planner.metrics import metrics
from servekit.planner.pages.reasons import VERDICT_STYLES, reason
from servekit.planner.plan import Plan, plan

if TYPE_CHECKING:
    from servekit.config.compose import Composed

Words = list[str]
Compose = Callable[[Words], "Composed"]

INVALID = "invalid"
LONGEST_KEY = 10
"""Characters of a heading that is a whole key."""
COLUMNS = (
    ("weights_gib", "weights GiB", "{:,.1f}", 6),
    ("kv_gib", "KV GiB", "{:,.1f}", 5),
    ("capacity_tokens", "tokens", "{:,.0f}", 7),
    ("max_concurrency", "at once", "{:,.1f}", 1),
    ("ttft_p95_ms", "TTFT ms", "{:,.0f}", 2),
    ("tpot_p95_ms", "TPOT ms", "{:,.1f}", 3),
    ("output_tokens_per_s", "tok/s", "{:,.0f}", 4),
    ("usd_per_hour", "$/h", "{:,.2f}", 8),
    ("usd_per_million_output_tokens", "$/Mtok", "{:,.2f}", 0),
)
"""Metric, heading, form, and the order in which columns are left out where there is no room: the
highest first."""

MOST_SIMULATED = 16
"""Plans in a table, each with a simulated run of up to some tenths of a second; of more, times are
closed forms."""

LEGEND = (
    "one device's memory; tokens and full-length requests at once of one copy; TTFT and TPOT at "
    "p95 of the declared workload; tok/s and $/Mtok at full load"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One combination: its plan, or the sentence that says why there is none."""

    words: Words
    plan: Plan | None
    error: str | None

    @property
    def verdict(self) -> str:
        return INVALID if self.plan is None else self.plan.verdict

    @property
    def exit_code(self) -> int:
        return 2 if self.plan is None else self.plan.exit_code

    @property
    def why(self) -> str | None:
        """What is wrong; None where nothing is."""
        if self.plan is None:
            return self.error
        return None if self.plan.verdict == "ok" else reason(self.plan)

    def to_json(self) -> dict[str, Any]:
        if self.plan is None:
            return {"words": self.words, "error": self.error}
        return {"words": self.words, "plan": self.plan.to_json()}


def rows(jobs: Iterable[Words], compose: Compose, *, advise: bool) -> Iterator[Row]:
    """A combination that does not compose is a row too, and does not stop the others."""
    every = list(jobs)
    simulate = len(every) <= MOST_SIMULATED
    for words in every:
        try:
            composed = compose(words)
            made = plan(composed.config, advise=advise, simulate=simulate, origins=composed.origins)
            yield Row(words, made, None)
        except ConfigError as error:
            yield Row(words, None, error.message)


def varying(found: list[Row]) -> dict[str, list[str]]:
    """By key, the values that rows have of what not all have alike; empty where a row has none."""
    each = [dict(map(pair, row.words)) for row in found]
    keys = dict.fromkeys(key for words in each for key in words)
    columns = {key: [words.get(key, "") for words in each] for key in keys}
    return {key: values for key, values in columns.items() if len(set(values)) > 1}


def pair(word: str) -> tuple[str, str]:
    key, _, value = word.lstrip("+").partition("=")
    return key, value


def render(found: list[Row], width: int) -> RenderableType:
    """What all rows share, the table, and a sentence for those that are not well."""
    labels = varying(found)
    shared = [word for word in found[0].words if pair(word)[0] not in labels]
    parts: list[RenderableType] = [Text(" ".join(shared), style="bold"), Text()] if shared else []
    table = comparison(found, labels, width)
    many = f"; times of more than {MOST_SIMULATED} plans are closed forms, not simulated"
    legend = LEGEND + (many if len(found) > MOST_SIMULATED else "") + left_out(table)
    parts += [table, Text(), Text(legend, style="dim")]
    for words, why in troubles(found, labels):
        parts += [Text(), Text(words, style="bold"), Padding(Text(why), (0, 0, 0, 2))]
    return Group(*parts)


def troubles(found: list[Row], labels: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Each reason once, with the words that its rows share and no others have, else with all."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(found):
        if row.why is not None:
            places.setdefault(row.why, []).append(place)
    for why, rows_of_it in places.items():
        common = {
            key: values[rows_of_it[0]]
            for key, values in labels.items()
            if len({values[place] for place in rows_of_it}) == 1 and values[rows_of_it[0]]
        }
        alike = [
            place
            for place in range(len(found))
            if all(labels[key][place] == value for key, value in common.items())
        ]
        if alike == rows_of_it:
            yield words_of(common) or "all", why
        else:
            yield "\n".join(words_of(at(labels, place)) for place in rows_of_it), why


def at(labels: Mapping[str, list[str]], place: int) -> dict[str, str]:
    return {key: values[place] for key, values in labels.items() if values[place]}


def words_of(values: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def comparison(found: list[Row], labels: Mapping[str, list[str]], width: int) -> Table:
    cells = {metric: [cell(row, metric, form) for row in found] for metric, _, form, _ in COLUMNS}
    verdicts = [row.verdict.replace("_", " ") for row in found]
    names = {heading_of(key, labels): values for key, values in labels.items()}
    left = {**names, "verdict": verdicts}
    kept = columns_for(
        width - sum(2 + max(len(name), *map(len, values)) for name, values in left.items()), cells
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in left:
        table.add_column(name, no_wrap=name == "verdict", overflow="fold")
    for metric in kept:
        table.add_column(kept[metric], justify="right", no_wrap=True)
    for place, row in enumerate(found):
        verdict = Text(verdicts[place], style=VERDICT_STYLES[row.verdict])
        words = (values[place] for values in names.values())
        table.add_row(*words, verdict, *(cells[metric][place] for metric in kept))
    return table


def left_out(table: Table) -> str:
    """What there was no room for, so that nobody takes a column that is not there for unknown."""
    shown = {column.header for column in table.columns}
    missing = [heading for _, heading, _, _ in COLUMNS if heading not in shown]
    return f"; a wider terminal also has {', '.join(missing)}" if missing else ""


def heading_of(key: str, labels: Mapping[str, list[str]]) -> str:
    """Of a long key what is after its group, unless another key ends alike."""
    last = key.rpartition(".")[2]
    alone = sum(other.rpartition(".")[2] == last for other in labels) == 1
    return last if alone and len(key) > LONGEST_KEY else key


def columns_for(room: int, cells: Mapping[str, list[str]]) -> dict[str, str]:
    """Headings by metric, as many as there is room for."""
    headings = {metric: heading for metric, heading, _, _ in COLUMNS}
    need = {name: 2 + max(len(headings[name]), *map(len, cells[name])) for name in headings}
    for metric, _, _, _ in sorted(COLUMNS, key=lambda column: -column[3]):
        if sum(need[name] for name in headings) > room + 2 and len(headings) > 1:
            del headings[metric]
    return headings


def cell(row: Row, metric: str, form: str) -> str:
    if row.plan is None:
        return ""
    value = metrics(row.plan)[metric].value
    if value is not None:
        return form.format(value)
    endless = metric.startswith("ttft") and row.plan.prediction is not None
    return "∞" if endless else "–"


def main(jobs: Iterable[Words], compose: Compose, as_json: bool) -> int:
    """`servekit plan -m`: one table, or one JSON array; the worst exit code."""
    found = list(rows(jobs, compose, advise=as_json))
    if as_json:
        write_json([row.to_json() for row in found])
    else:
        console = Console(highlight=False)
        console.print(render(found, console.width))
    return max((row.exit_code for row in found), default=0)
