"""Host memory that was declared and not used, and why it would not have paid."""

import math

from servekit.config.schema import Config
from servekit.scheduler.preemption import swap_or_again_s
from servekit.scheduler.settings import settings_of
from servekit.simulator.pages.metrics import number
from servekit.simulator.record import Report
from servekit.simulator.run import layout_of
from servekit.spec.latency import step_model


def unused(report: Report, config: Config) -> str | None:
    """Where requests were preempted and none was swapped.

    Of a request as long as those were on average, with nothing left of it in the prefix cache: what
    the scheduler weighs for each.
    """
    if not config.kv.offload_gib or report.swaps or not report.preemptions:
        return None
    layout, model = layout_of(config), step_model(config)
    settings = settings_of(config, layout, model)
    tokens = max(1, math.ceil(report.preempted_tokens))
    blocks = layout.blocks_for(tokens)
    said = f"kv.offload_gib={config.kv.offload_gib:g} was not used"
    of = f"the {number(tokens)} tokens that a preempted request had on average"
    if blocks > settings.kv.host_blocks:
        return f"{said}: it has room for {settings.kv.host_blocks:,} blocks, {of} take {blocks:,}"
    copies, again = swap_or_again_s(blocks, tokens, 0, model, settings.block_copy_s or 0.0)
    if copies < again:
        return f"{said}: enough of what was preempted was left in the prefix cache"
    return (
        f"{said}, and would not have paid: to copy {of} to the host and back takes "
        f"{number(1000 * copies)} ms, to compute them again in steps with others "
        f"{number(1000 * again)}"
    )
