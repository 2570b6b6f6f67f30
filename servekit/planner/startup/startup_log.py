"""`servekit plan --from-log`: a start-up log beside the plan, and its constants kept for later."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from servekit.config import site
from servekit.config.paths import expanded
from servekit.config.schema import Config
from servekit.errors import ConfigError
from servekit.output import write_json
from servekit.planner.startup.boot_lines import BootLog, read_log
from servekit.planner.startup.measured import (
    Compared,
    Measured,
    compared,
    constants,
    holds_otherwise,
    measured,
    with_constants,
    without_constants,
)
from servekit.spec.memory import ledger
from servekit.spec.model import GIB

if TYPE_CHECKING:
    from servekit.config.compose import Composed

MOST_APART = 0.10
"""Weights that are further from the plan's are those of another model, format or parallelism."""

STEP_KEYS = {"step_tokens": "max_num_batched_tokens", "seats": "max_num_seqs"}


def main(path: str, composed: "Composed", as_json: bool) -> int:
    """0 once the constants are stored. Raises ConfigError for a log that says nothing of this."""
    config = composed.config
    log = read_log(expanded(path))
    found = measured(log, config)
    check(path, log, found, config)
    notes = differing_steps(log, config)
    learnt = constants(config, found, Path(path).name, same_steps=not notes)
    rows = list(compared(config, found, learnt))
    key = site.model_key(config.model.name, config.quantization.weights)
    file = site.store(learnt.model_dump(), *place(config), model=key)
    bands = (band_gib(without_constants(config)), band_gib(with_constants(config, learnt)))
    if as_json:
        write_json(
            {
                "log": path,
                "ranks": found.ranks,
                "compared": [row.to_json() for row in rows],
                "constants": learnt.model_dump(),
                "notes": notes,
                "stored": str(file),
                "band_gib": {"planned": bands[0], "calibrated": bands[1]},
            }
        )
    else:
        page = render(found, rows, notes, file, bands)
        Console(highlight=False).print(Group(*page))
    return 0


def place(config: Config) -> tuple[str, int, int]:
    return config.hardware.name, config.parallelism.tensor, config.parallelism.pipeline


def band_gib(config: Config) -> float:
    return ledger(config).band_bytes / GIB


def check(path: str, log: BootLog, found: Measured, config: Config) -> None:
    """Raises ConfigError for a log without memory lines, or of another deployment."""
    if found.weights is None:
        raise ConfigError(
            f"{path} has no line of servekit or vLLM that says what weights take, such as 'Model "
            "loading took 14.99 GiB'; give the whole output of a start, from its first line"
        )
    for name in ("tensor", "pipeline"):
        ran, planned = log.engine.get(name), getattr(config.parallelism, name)
        if ran is not None and int(ran) != planned:
            raise ConfigError(
                f"{path} is of another deployment: it ran with {name} parallelism {ran:g}, and "
                f"these words say parallelism.{name}={planned}; add parallelism.{name}={ran:g}"
            )
    planned_gib = ledger(without_constants(config)).weights.bytes / GIB
    if abs(found.weights / planned_gib - 1) > MOST_APART:
        raise ConfigError(
            f"{path} is of another deployment: its weights take {found.weights:.2f} GiB on a "
            f"device, and those of these words {planned_gib:.2f} GiB; give the words of the "
            "deployment that wrote it (model, quantization, parallelism)"
        )
    if (apart := holds_otherwise(as_it_ran(log, config), found)) is not None:
        raise ConfigError(
            f"{path} is of another deployment: its cache of {found.kv:.2f} GiB holds "
            f"{apart[0]:.2f} requests of {found.concurrency_tokens:,} tokens, and that of these "
            f"words would hold {apart[1]:.2f}; give the words of the deployment that wrote it "
            "(model, kv.dtype, kv.hybrid)"
        )


def as_it_ran(log: BootLog, config: Config) -> Config:
    """With the limits of a step that the log says: they size what windows keep."""
    ran = {STEP_KEYS[name]: int(log.engine[name]) for name in STEP_KEYS if name in log.engine}
    return config.model_copy(update={"scheduler": config.scheduler.model_copy(update=ran)})


def differing_steps(log: BootLog, config: Config) -> list[str]:
    """Limits of a step that the log ran with and these words do not have."""
    found = []
    for name, key in STEP_KEYS.items():
        ran, planned = log.engine.get(name), getattr(config.scheduler, key)
        if ran is not None and int(ran) != planned:
            found.append(
                f"the log ran with {key}={ran:g} and these words say {planned}, so its "
                f"activations are not stored; add scheduler.{key}={ran:g} to use them"
            )
    return found


def render(
    found: Measured, rows: list[Compared], notes: list[str], file: Path, bands: tuple[float, float]
) -> list[RenderableType]:
    ranks = f"worst of {found.ranks} ranks" if found.ranks > 1 else "of one rank"
    parts: list[RenderableType] = [
        Text(f"Planned and measured, {ranks}", style="bold"),
        table(rows),
        *(Text(f"! {note}", style="yellow") for note in notes),
        Text(),
        Text(f"stored in {file}", overflow="fold"),
        Text(
            f"Later plans of this hardware and parallelism use it: {narrowed(*bands)}. To undo, "
            "remove that file; to plan once without it, add calibration=none."
        ),
    ]
    return parts


def narrowed(before: float, after: float) -> str:
    if f"{before:.2f}" == f"{after:.2f}":
        return f"what they say of memory stays known to {after:.2f} GiB"
    return f"what they say of memory is known to {after:.2f} GiB instead of {before:.2f}"


def table(rows: list[Compared]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    made.add_column("")
    for heading in ("planned", "measured", "", "error", "calibrated", "error"):
        made.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for row in rows:
        form = "{:,.2f}" if row.unit in ("GiB", "requests") else "{:,.0f}"
        made.add_row(
            row.name,
            form.format(row.planned),
            form.format(row.measured),
            row.unit,
            f"{row.error_percent(row.planned):+.1f} %",
            form.format(row.calibrated),
            f"{row.error_percent(row.calibrated):+.1f} %",
        )
    return made
