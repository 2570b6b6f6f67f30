"""What every step was and how long it took, as lines of JSON: what a step-time model is fitted to.

    {"id": 7, "decodes": 3, "context": 41.0, "prefill": [[64, 0]], "samples": 4, "copies": 0,
     "seconds": 0.0121, "between": 0.0002}

`decodes` requests went on by a token and saw `context` tokens each on average, their own too; of
each prompt chunk `prefill` has its tokens and those that were there already. `samples` rows had
their logits computed, `copies` blocks were copied before the step. `seconds` is what copies and
step took, `between` what passed since the step before, or since somebody came to an idle engine,
and was not this step: planning it, telling what the last one gave, letting requests in.
"""

import json
import logging
import threading
from pathlib import Path
from queue import Empty, Full, Queue
from typing import IO, Any

from servekit.config.schema import Config
from servekit.errors import ConfigError
from servekit.scheduler.batch import Batch, Outcome

logger = logging.getLogger(__name__)

MAX_BEHIND = 10_000
"""Steps that may wait to be written; a disk that is slower than the engine loses some."""

Line = dict[str, Any]


class StepLog:
    """Written by a thread of its own, so that a slow disk stops no step."""

    def __init__(self, path: Path) -> None:
        """Begins the file anew; raises ConfigError if it cannot be written."""
        try:
            self._file: IO[str] = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"telemetry.step_log={path} cannot be written: {error.strerror}; name a file in "
                "a folder that is there, or null"
            ) from None
        self._lines: Queue[Line | None] = Queue(MAX_BEHIND)
        self._lost = 0
        self._writer = threading.Thread(target=self._write, name="step log", daemon=True)
        self._writer.start()

    def note(self, batch: Batch, outcome: Outcome, between: float) -> None:
        """Never waits. A step of which a row failed was run more than once, and says nothing."""
        if outcome.failed:
            return
        try:
            self._lines.put_nowait(line_of(batch, outcome.seconds, between))
        except Full:
            self._lost += 1
            if self._lost == 1:
                logger.warning("the step log is %d steps behind and leaves some out", MAX_BEHIND)

    def close(self) -> None:
        """Returns once everything is in the file."""
        self._lines.put(None)
        self._writer.join()

    def _write(self) -> None:
        with self._file as file:
            while (line := self._next()) is not None:
                file.write(json.dumps(line) + "\n")

    def _next(self) -> Line | None:
        try:
            return self._lines.get_nowait()
        except Empty:
            self._file.flush()
            return self._lines.get()


def step_log(config: Config) -> StepLog | None:
    path = config.telemetry.step_log
    return None if path is None else StepLog(Path(path))


def line_of(batch: Batch, seconds: float, between: float) -> Line:
    decodes, others, copies = batch.decodes, batch.others, batch.copies
    count = len(decodes.ids)
    return {
        "id": batch.id,
        "decodes": count,
        "context": round(1 + sum(decodes.starts) / count, 2) if count else 0.0,
        "prefill": [[len(row.tokens), row.start] for row in others],
        "samples": count + sum(row.samples for row in others),
        "copies": len(copies.to_host) + len(copies.from_host) + len(copies.within),
        "seconds": round(seconds, 7),
        "between": round(between, 7),
    }
