"""`servekit simulate`: the page of one simulated deployment, verdict first."""

from rich.console import Console, Group, RenderableType
from rich.text import Text

from servekit.config.schema import Config
from servekit.layout import INDENT, bullets, indent, section
from servekit.simulator.pages.metrics import number
from servekit.simulator.pages.tables import (
    classes_table,
    classes_title,
    curves_table,
    latency_table,
    metric_table,
    misses_line,
    promised_line,
    tenants_table,
)
from servekit.simulator.pages.verdict import HEADLINES, STYLES, advice, ends, verdict
from servekit.simulator.record import Report


def show(report: Report, config: Config) -> None:
    out = console()
    out.print(render(report, config, out.width))


def console() -> Console:
    return Console(highlight=False)


def render(report: Report, config: Config, width: int) -> RenderableType:
    """Verdict, latency, rates, batch, cache, tenants, time, advice; good from 80 columns."""
    parts: list[RenderableType] = [headline(report, config)]
    parts += section(traffic(config, report), latency_table(report, width - INDENT))
    if promised := promised_line(report):
        parts.append(indent(Text(promised)))
    parts += section("Throughput", metric_table(report, "rate"), Text(ends(report)))
    parts += section("Batch and preemption", metric_table(report, "batch"))
    parts += section("Cache", metric_table(report, "cache"))
    if why := misses_line(report):
        parts.append(indent(Text(why)))
    if len(report.tenants) > 1:
        parts += section("Tenants", tenants_table(report))
    if len(report.classes) > 1:
        parts += section(classes_title(report), classes_table(report, width - INDENT))
    if report.series.at:
        title = f"The first seed over {number(report.series.at[-1])} s"
        parts += section(title, curves_table(report.series, width - INDENT))
    if said := advice(report, config):
        parts += section("What to try", bullets(said, mark="+", style="cyan"))
    return Group(*parts)


def headline(report: Report, config: Config) -> RenderableType:
    found = verdict(report)
    word = HEADLINES[found.word]
    first = Text.assemble((word, f"bold {STYLES[found.word]}"), f"  {found.why}")
    return Group(first, Text(subject(report, config), style="dim"), Text(effort(report), "dim"))


def subject(report: Report, config: Config) -> str:
    """What is simulated: name, model, devices, scheduler."""
    rule = config.scheduler
    return (
        f"{report.name}: {config.model.name} on {config.parallelism.devices} x "
        f"{config.hardware.name}, {rule.policy} batching in order {rule.order}, "
        f"{rule.max_num_seqs:,} seats"
    )


def effort(report: Report) -> str:
    seeds = len(report.seeds)
    each = f"{seeds} seeds of {report.requests:,} requests" if seeds > 1 else ""
    return (
        f"simulated, not measured: {each or f'one seed of {report.requests:,} requests'}"
        f"{alike(report)}, "
        f"{number(report.simulated_s)} s each, in {number(report.wall_s)} s; the first "
        f"{number(report.warm_up_s)} s are left out; ± is half of a 95 % interval"
        + (f"; step times: {report.times}" if report.times else "")
    )


def alike(report: Report) -> str:
    return f" ({report.alike} more changed nothing)" if report.alike else ""


def traffic(config: Config, report: Report) -> str:
    """What comes, by its source."""
    load = config.workload
    rate = f"{number(report.offered_per_s.value)} requests/s"
    if load.trace is not None:
        return f"Latency of {load.trace}, {rate}"
    lengths = f"{load.prompt_tokens:,} tokens in and {load.output_tokens:,} out, on average"
    if load.arrivals == "closed":
        return f"Latency with {load.concurrency:,} clients, {rate} of {lengths}"
    bursts = f" in bursts of {load.burst_size:,}" if load.arrivals == "bursts" else ""
    return f"Latency at {rate}{bursts} of {lengths}"
