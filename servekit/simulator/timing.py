"""How long simulated steps take.

On GPUs steps of decodes are padded to the sizes of captured graphs; with pipeline stages a step is
dealt into batches.
"""

import math
from collections.abc import Sequence

from servekit.config.schema import Config
from servekit.scheduler.settings import StepTime
from servekit.spec.latency import StepModel
from servekit.spec.tabled import Tabled

Prefill = Sequence[tuple[float, float]]

GRAPHS_8_APART = 256
GRAPHS_16_APART = 512
"""Rows up to which decode steps are captured, 8 and 16 apart, beside 1, 2 and 4; larger ones run
as they are. What vLLM captures by default."""


def graph_rows(rows: int) -> int:
    """To which a decode step of so many rows is padded."""
    if rows <= 2:
        return rows
    if rows <= 4:
        return 4
    if rows <= GRAPHS_8_APART:
        return -(-rows // 8) * 8
    if rows <= GRAPHS_16_APART:
        return -(-rows // 16) * 16
    return rows


class Dealt:
    """A step of a model in `stages` pipeline stages, whose rows are dealt into as many batches.

    They follow each other through the stages, and the ring goes round as fast as its fullest
    batch: the one with an even share of the decodes, and the prompts up to the `most` tokens that
    a batch may have. Those beyond are in the others and take no time of their own. What is left
    of a bubble: fewer rows than stages, and prompts that do not fill all batches.
    """

    def __init__(self, model: StepTime, stages: int, most: int) -> None:
        self.model, self.stages, self.most = model, stages, most

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        """Until every row of the step has gone on."""
        share = math.ceil(decodes / self.stages)
        room = max(1.0, self.most - share)
        fullest = []
        for new, there in prefill:
            if room <= 0:
                break
            fullest.append((min(new, room), there))
            room -= new
        return self.model.seconds(share, context, fullest)


def timing(config: Config, model: StepTime) -> StepTime:
    """Of a copy of the model, for its scheduler and for its executor alike."""
    times = Tabled(model) if isinstance(model, StepModel) else model
    stages = config.parallelism.pipeline
    if stages > 1:
        return Dealt(times, stages, config.scheduler.max_num_batched_tokens)
    return times
