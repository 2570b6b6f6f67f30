"""Traces in CSV: Azure (2023 and 2024), BurstGPT, Vidur. Told apart by their columns."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from servekit.errors import ConfigError
from servekit.workload import fields
from servekit.workload.trace import Builder, Row


@dataclass(frozen=True, slots=True)
class Columns:
    """Names in lower case; `read_time` makes seconds of a cell and the column's name."""

    source: str
    time: str
    prompt: str
    output: str
    read_time: Callable[[str, str], float]

    @property
    def names(self) -> tuple[str, str, str]:
        return self.time, self.prompt, self.output


FORMATS = (
    Columns("Azure", "timestamp", "contexttokens", "generatedtokens", fields.date),
    Columns("BurstGPT", "timestamp", "request tokens", "response tokens", fields.seconds),
    Columns("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens", fields.seconds),
)
"""A BurstGPT request that failed has an answer of 0 tokens, and is counted as one without."""


def read_csv(lines: Iterable[str], builder: Builder) -> None:
    table = csv.reader(lines)
    try:
        names = [name.strip().lower() for name in next(table, [])]
        columns = _format_of(names, builder.name)
        time, prompt, output = (names.index(name) for name in columns.names)
        for cells in table:
            if not any(cells):
                continue
            try:
                if len(cells) != len(names):
                    raise ValueError(f"{len(cells)} cells under {len(names)} columns")
                row = Row(
                    fields.tokens(cells[prompt], columns.prompt),
                    fields.tokens(cells[output], columns.output),
                    at=columns.read_time(cells[time], columns.time),
                )
            except ValueError as error:
                builder.refuse(f"line {table.line_num}", error)
            else:
                builder.add(row)
    except csv.Error as error:
        builder.refuse(f"line {table.line_num}", error)


def _format_of(names: list[str], trace: str) -> Columns:
    for columns in FORMATS:
        if {*columns.names} <= {*names}:
            return columns
    known = "; ".join(f"{columns.source}: {', '.join(columns.names)}" for columns in FORMATS)
    raise ConfigError(
        f"workload.trace={trace} has the columns {ascii(', '.join(names))[:200]}, which make no "
        f"known trace. Known are ({known}), and JSON of Mooncake, ShareGPT and servekit",
        param="workload.trace",
    )
