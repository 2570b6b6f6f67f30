"""What a run on a GPU found: a line for each thing tried."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One thing tried. `values` are numbers by what they are, with their unit in the name; None
    where nothing was timed. `reached` over `target` is what the promise is about, if there is one;
    `wrong` says what is wrong, "" for nothing.
    """

    section: str
    what: str
    shape: str
    values: dict[str, float | None] = field(default_factory=dict)
    reached: float | None = None
    target: float | None = None
    wrong: str = ""

    @property
    def said(self) -> str:
        if self.wrong:
            return f"WRONG: {self.wrong}"
        if self.target is None:
            return ""
        if self.reached is None:
            return f"target {self.target:g}, not timed"
        met = "met" if self.reached >= self.target else "MISSED"
        return f"{self.reached:.2f} of {self.target:g}: {met}"


def markdown(lines: Sequence[Line], about: dict[str, Any], command: str) -> str:
    """A table for each section."""
    parts = ["# On a GPU", "", f"    {command}", ""]
    parts += [f"* {name}: {value}" for name, value in about.items()]
    for section in dict.fromkeys(line.section for line in lines):
        mine = [line for line in lines if line.section == section]
        names = list(dict.fromkeys(name for line in mine for name in line.values))
        parts += ["", f"## {section.replace('_', ' ')}", ""]
        parts.append("| " + " | ".join(["what", "shape", *names, "said"]) + " |")
        parts.append("|---|---|" + "---:|" * len(names) + "---|")
        for line in mine:
            cells = [shown(line.values.get(name)) for name in names]
            parts.append("| " + " | ".join([line.what, line.shape, *cells, line.said]) + " |")
    return "\n".join(parts) + "\n"


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def as_json(lines: Sequence[Line], about: dict[str, Any], command: str) -> str:
    found = [{**asdict(line), "said": line.said} for line in lines]
    return json.dumps({"command": command, "about": about, "lines": found}, indent=1) + "\n"
