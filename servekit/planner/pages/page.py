"""A plan as a page of the terminal, verdict first; as JSON; with its formulas."""

from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from servekit.layout import INDENT, bullets, indent, section
from servekit.output import write_json
from servekit.planner.catalogue.models import count
from servekit.planner.pages.bars import memory_bar
from servekit.planner.pages.reasons import HEADLINES, VERDICT_STYLES, reason
from servekit.planner.pages.tables import (
    advice_table,
    cache_line,
    concurrency_table,
    latency_table,
    memory_table,
    service_table,
)
from servekit.planner.plan import Plan, plan
from servekit.planner.prediction.prediction import Prediction, Sampled
from servekit.planner.prediction.traffic import moments_of
from servekit.spec.model import parameters

if TYPE_CHECKING:
    from servekit.config.compose import Composed


def main(composed: "Composed", as_json: bool, explain: bool = False) -> int:
    """`servekit plan`: print the plan; 0 if serve would launch it, 2 if not."""
    made = plan(composed.config, origins=composed.origins)
    if not explain:
        write_json(made.to_json()) if as_json else show(made)
        return made.exit_code
    from servekit.planner.pages.formula import formulas_page
    from servekit.planner.pages.formulas import formulas

    found = formulas(made)
    if as_json:
        write_json({**made.to_json(), "explain": [formula.to_json() for formula in found]})
    else:
        console().print(Group(headline(made), Text(), formulas_page(found)))
    return made.exit_code


def console() -> Console:
    return Console(highlight=False)


def show(made: Plan) -> None:
    """What `servekit plan` prints, and `serve` before it launches."""
    out = console()
    out.print(render(made, out.width))


def render(made: Plan, width: int) -> RenderableType:
    """Verdict, memory, cache, latency, cost, warnings and advice; good from 80 columns."""
    book, prediction = made.ledger, made.prediction
    parts: list[RenderableType] = [
        headline(made),
        *section(memory_title(made), memory_bar(book, width - INDENT), Text(), memory_table(book)),
        *section("KV cache of one copy", cache_line(made)),
    ]
    if made.kv.num_blocks:
        parts.append(indent(concurrency_table(made)))
    if prediction is not None:
        parts += section(traffic_title(made, prediction), latency_table(made, prediction))
        if prediction.sampled is not None:
            parts.append(indent(Text(run_line(prediction, prediction.sampled), style="dim")))
        parts += section("Throughput and cost", service_table(made, prediction))
        parts.append(indent(Text(f"how: {prediction.method}", style="dim")))
    if made.warnings:
        parts += section("Warnings", bullets(list(made.warnings), mark="!", style="yellow"))
    if made.advice:
        parts += section("What would mend it", advice_table(made))
    elif made.exit_code:
        none = "Nothing that was tried does: take larger hardware or a smaller model."
        parts += section("What would mend it", Text(none))
    return Group(*parts)


def headline(made: Plan) -> RenderableType:
    style = VERDICT_STYLES[made.verdict]
    first = Text.assemble((HEADLINES[made.verdict], f"bold {style}"), f"  {reason(made)}")
    return Group(first, Text(subject(made), style="dim"))


def subject(made: Plan) -> str:
    """What is planned: name, model, format, devices."""
    config = made.config
    weights = config.quantization.weights
    held = config.model.dtype if weights == "none" else weights
    return (
        f"{config.name}: {config.model.name}, {count(parameters(config.model.shape).total)} "
        f"parameters in {held}, on {config.parallelism.devices} x {config.hardware.name}"
    )


def memory_title(made: Plan) -> str:
    stages = made.config.parallelism.pipeline
    if stages == 1:
        return "Memory of one device"
    return f"Memory of one device, pipeline stage {made.ledger.stage} of 0-{stages - 1}: the worst"


def traffic_title(made: Plan, prediction: Prediction) -> str:
    """Who comes; of a trace and of clients who wait for their answers, as they turn out."""
    load = made.config.workload
    work, rate = moments_of(load), f"{prediction.requests_per_s:.4g}"
    lengths = f"{work.prompt:,.0f} tokens in and {work.output:,.0f} out, on average"
    if load.arrivals == "closed" and work.requests is None:
        return f"Latency of {load.concurrency:,} clients that wait, {rate} requests/s of {lengths}"
    return f"Latency at {rate} request{'' if rate == '1' else 's'}/s of {lengths}"


def run_line(prediction: Prediction, run: Sampled) -> str:
    """What times are from, and how far another run of so many requests might have been from it."""
    chance = [
        f"{name} p95 by {100 * half / value:.0f} %"
        for name, value, half in (
            ("TTFT", prediction.ttft_ms.p95, run.ttft_ms.p95),
            ("TPOT", prediction.tpot_ms.p95, run.tpot_ms.p95),
        )
        if value and half is not None
    ]
    cut = f" ({run.cut:,} cut to model.max_model_len)" if run.cut else ""
    moved = f"; chance moves {' and '.join(chance)}" if chance else ""
    return (
        f"simulated: {run.requests:,} requests{cut} over {run.seconds:,.0f} s, one seed{moved}; "
        "servekit simulate runs more"
    )
