"""A recorded workload in columns: when requests came, how long they were, what they shared."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from servekit.errors import ConfigError
from servekit.workload.arrival import SloClass

MOST_TOKENS = 10**9
"""Of a prompt or an answer; a line that says more is not believed."""
MOST_SECONDS = 1e11
"""Of a time, so that one since 1970 in seconds is believed, and one in nanoseconds is not."""
NAMED = 20
"""Lines that an error names before it only counts."""


T = TypeVar("T")


class Row(NamedTuple):
    """A line of a trace. `at` None: it does not say when; `session` None: a conversation of one."""

    prompt_tokens: int
    output_tokens: int
    at: float | None = None
    session: str | int | None = None
    blocks: Sequence[object] = ()
    """What its prompt consists of, block by block: equal entries are equal tokens."""
    tenant: str | None = None
    priority: int | None = None
    slo_class: SloClass | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of time; each column is as long as the others, or empty where no request
    says anything of it. Times are in seconds since the first request.
    """

    name: str
    prompt_tokens: "array[int]"
    output_tokens: "array[int]"
    at: "array[float]"
    """Empty: it was not recorded when they came; those of a session follow each other."""
    sessions: "array[int]"
    """Numbered from 0; a request repeats what the one of its session before it said."""
    blocks: list[tuple[int, ...]]
    """Numbered from 0, `block_size` tokens each, the last one of a prompt as long as is left."""
    block_size: int
    tenants: list[str | None]
    priorities: list[int | None]
    slo_classes: list[SloClass | None]
    dropped: dict[str, int] = field(default_factory=dict)
    """Lines that are no requests, by what they are instead."""
    reordered: bool = False
    """The file was not in order of time."""

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def conversations(self) -> list[list[int]]:
        """Requests of each conversation, in order of the first of them."""
        if not self.sessions:
            return [[index] for index in range(len(self))]
        found: dict[int, list[int]] = {}
        for index, session in enumerate(self.sessions):
            found.setdefault(session, []).append(index)
        return list(found.values())


class Builder:
    """Collects rows and what is wrong with lines; `trace` refuses if anything was."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.block_size = 0
        """Of the rows' blocks, tokens."""
        self._rows: list[Row] = []
        self._dropped: dict[str, int] = {}
        self._wrong: list[str] = []
        self._num_wrong = 0

    def add(self, row: Row) -> None:
        """A row with no prompt or no answer is counted and left out: it was never served."""
        if row.output_tokens == 0:
            self.drop("no answer")
        elif row.prompt_tokens == 0:
            self.drop("no prompt")
        else:
            self._rows.append(row)

    def drop(self, kind: str) -> None:
        self._dropped[kind] = self._dropped.get(kind, 0) + 1

    def refuse(self, where: str, what: object) -> None:
        """What is malformed, such as "line 3", counted from 1."""
        self._num_wrong += 1
        if self._num_wrong <= NAMED:
            self._wrong.append(f"{where}: {what}")

    def trace(self) -> Trace:
        if self._num_wrong:
            more = self._num_wrong - len(self._wrong)
            rest = [f"and {more} more"] if more else []
            listed = "\n  ".join([*self._wrong, *rest])
            raise ConfigError(
                f"workload.trace={self.name}: {self._num_wrong} of its requests cannot be read; "
                f"mend or remove them:\n  {listed}",
                param="workload.trace",
            )
        if not self._rows:
            left_out = "".join(f"; {count} with {kind}" for kind, count in self._dropped.items())
            raise ConfigError(
                f"workload.trace={self.name} has no request to replay{left_out}",
                param="workload.trace",
            )
        return self._columns()

    def _columns(self) -> Trace:
        rows = self._rows
        times = [row.at for row in rows if row.at is not None]
        if len(times) not in (0, len(rows)):
            raise ConfigError(
                f"workload.trace={self.name} says of {len(times)} requests when they came and of "
                f"{len(rows) - len(times)} not; give all a time or none",
                param="workload.trace",
            )
        reordered = any(after < before for before, after in pairwise(times))
        if reordered:
            rows.sort(key=lambda row: row.at or 0.0)
            times.sort()
        ids: dict[object, int] = {}
        return Trace(
            name=self.name,
            prompt_tokens=array("q", [row.prompt_tokens for row in rows]),
            output_tokens=array("q", [row.output_tokens for row in rows]),
            at=array("d", [at - times[0] for at in times]),
            sessions=array("q", _numbered(rows)),
            blocks=_unless_empty(
                [tuple(ids.setdefault(b, len(ids)) for b in row.blocks) for row in rows], ()
            ),
            block_size=self.block_size,
            tenants=_unless_empty([row.tenant for row in rows], None),
            priorities=_unless_empty([row.priority for row in rows], None),
            slo_classes=_unless_empty([row.slo_class for row in rows], None),
            dropped=self._dropped,
            reordered=reordered,
        )


def _unless_empty(column: list[T], nothing: T) -> list[T]:
    return [] if all(entry == nothing for entry in column) else column


def _numbered(rows: list[Row]) -> list[int]:
    """Sessions from 0 in order of appearance; a row without one is a session of its own."""
    if all(row.session is None for row in rows):
        return []
    ids: dict[object, int] = {}
    return [
        ids.setdefault(index if row.session is None else (row.session,), len(ids))
        for index, row in enumerate(rows)
    ]
