"""A device that computes nothing: tokens as they are foreseen, seconds of a model."""

import random
from typing import NamedTuple

from servekit.config.schema import Config
from servekit.scheduler.batch import Batch, Outcome, Row
from servekit.scheduler.settings import StepTime
from servekit.simulator.timing import graph_rows

STOP = 2**31 - 1
"""The token that ends an answer of which nobody knows how long it will be."""


class Work(NamedTuple):
    """What was in a step."""

    decodes: int
    prompt_tokens: int
    prompts: int
    padding: int
    """Rows that only fill a graph."""
    drafts: int
    accepted: int


class SimulatedExecutor:
    """Runs batches of one copy of the model. `answers` and `ends` are by request: the token that
    its answer is made of, and the position whose row samples STOP.
    """

    def __init__(self, config: Config, step_time: StepTime, seed: int) -> None:
        self.step_time = step_time
        self.padded = config.hardware.kind != "cpu"
        self.acceptance = config.speculative.acceptance
        self.random = random.Random(f"drafts/{seed}")
        self.answers: dict[int, int] = {}
        self.ends: dict[int, float] = {}
        self.ids: list[int] = []
        self.said: list[int] = []
        self.context = 0
        """Of the decodes of the step before: whose, what they were answered, and the sum of their
        positions."""
        self.same = 0.0
        """Steps of the same decodes in which they are answered the same again."""

    def add(self, request_id: int, answer: int, end: float) -> None:
        self.answers[request_id] = answer
        self.ends[request_id] = end

    def remove(self, request_id: int) -> None:
        del self.answers[request_id], self.ends[request_id]

    def run(self, batch: Batch) -> tuple[Outcome, Work]:
        decoded, context = self._said(batch.decodes.ids, batch.decodes.starts)
        decodes = len(decoded)
        if not batch.others:
            return self._decode_step(decoded, decodes, context)
        tokens: dict[int, list[int]] = {}
        prefill: list[tuple[int, int]] = []
        drafts = accepted = 0
        for row in batch.others:
            if row.samples:
                tokens[row.request_id] = self._sampled(row)
            if row.drafts:
                decodes, context = decodes + 1, context + row.start
                drafts += row.drafts
                accepted += len(tokens[row.request_id]) - 1
            else:
                prefill.append((len(row.tokens), row.start))
        mean = context / decodes + 1 if decodes else 0.0
        seconds = self.step_time.seconds(decodes, mean, prefill)
        new = sum(new for new, _ in prefill)
        work = Work(decodes, new, len(prefill), 0, drafts, accepted)
        return Outcome(decoded, tokens, seconds=seconds), work

    def ahead(
        self, ids: list[int], starts: list[int], most: int, now: float, until: float
    ) -> tuple[list[float], list[float]]:
        """The next steps in which these decode and nobody's answer ends, `most` of them or fewer,
        that end before `until`: seconds of each, and when it ends. None where a subclass says in
        `run` what a step takes.
        """
        if type(self).run is not SimulatedExecutor.run:
            return [], []
        ends, rows, context = self.ends, len(ids), sum(starts)
        padded = rows + self.padding(rows)
        left = min([ends[id] - start for id, start in zip(ids, starts, strict=True)])
        most = int(min(most, left))
        self.same = 0.0
        seconds: list[float] = []
        at: list[float] = []
        while len(seconds) < most:
            context += rows
            each = self.step_time.seconds(padded, context / padded)
            now += each
            if now >= until:
                break
            seconds.append(each)
            at.append(now)
        return seconds, at

    def _said(self, ids: list[int], starts: list[int]) -> tuple[list[int], int]:
        """A token for each decode, and the sum of their positions.

        Those who decoded in the step before are one position further.
        """
        if self.same > 0 and ids == self.ids:
            self.same -= 1
            self.context += len(ids)
            return self.said.copy(), self.context
        answers, ends = self.answers, self.ends
        left = [ends[id] - start for id, start in zip(ids, starts, strict=True)]
        said = [answers[id] if more > 0 else STOP for id, more in zip(ids, left, strict=True)]
        self.ids, self.said, self.context = ids.copy(), said, sum(starts)
        self.same = min(left, default=0.0) - 1
        return said.copy(), self.context

    def padding(self, rows: int) -> int:
        """Rows that see nothing, in a step of so many decodes: on a GPU it is a captured graph."""
        return graph_rows(rows) - rows if self.padded else 0

    def _decode_step(self, decoded: list[int], rows: int, starts: int) -> tuple[Outcome, Work]:
        padding = self.padding(rows)
        padded = rows + padding
        seconds = self.step_time.seconds(padded, (starts + rows) / padded)
        return Outcome(decoded, {}, seconds=seconds), Work(rows, 0, 0, padding, 0, 0)

    def _sampled(self, row: Row) -> list[int]:
        """The accepted drafts and the token after them; nothing after STOP."""
        count = 1
        while count <= row.drafts and self.random.random() < self.acceptance:
            count += 1
        first = row.start + len(row.tokens) - row.drafts - 1
        id = row.request_id
        answer, left = self.answers[id], self.ends[id] - first
        if left < count:
            return [answer] * max(0, int(left)) + [STOP]
        return [answer] * count
