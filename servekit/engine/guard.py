"""Keeps a fault where it belongs: with one request, or with the engine."""

import logging
import time
import uuid
from dataclasses import replace
from typing import Any, Protocol

from servekit.engine.constraint import Constraint
from servekit.engine.messages import Sampling
from servekit.engine.runner import Sampled
from servekit.errors import EngineError
from servekit.scheduler.batch import Batch, Copies

logger = logging.getLogger(__name__)


class Executor(Protocol):
    def add(self, request_id: int, prompt: list[int], sampling: Sampling) -> None: ...
    def constrain(self, request_id: int, constraint: Constraint) -> None: ...
    def remove(self, request_id: int) -> None: ...
    def copy(self, copies: Copies) -> None: ...
    def prepare(self, batch: Batch) -> Any:
        """What `run` needs of the batch besides, made by the thread that plans while nobody plans:
        block tables go on changing. Earlier batches may be running."""
        ...

    def run(self, batch: Batch, prepared: Any = None) -> Sampled:
        """After all batches before it; `prepared` None: it is to be prepared first."""
        ...

    def probe(self) -> None:
        """Runs one token of nobody's; raises if the device is beyond use."""
        ...


def run_guarded(executor: Executor, batch: Batch, prepared: Any = None) -> Sampled:
    """Makes the batch's copies and runs it; the outcome says how long that took.

    Raises EngineError if nothing can be run, not even a token of our own, or blocks are lost.
    """
    started = time.perf_counter()
    if batch.copies:
        try:
            executor.copy(batch.copies)
        except Exception as fault:
            raise EngineError(f"the engine cannot copy KV blocks: {describe(fault)}") from fault
    outcome = _run(executor, batch, prepared)
    return replace(outcome, seconds=time.perf_counter() - started)


def _run(executor: Executor, batch: Batch, prepared: Any = None) -> Sampled:
    """Where the batch raises, each row alone, so that only faulty ones fail.

    A row alone is prepared here, while others may be planned: what it sees of its own block tables
    does not change.
    """
    try:
        return executor.run(batch, prepared)
    except Exception as fault:
        if batch.num_rows == 1:
            executor_works(executor, fault)
            return _failed(batch, report(fault))
        kind = type(fault).__name__
        logger.warning("step %d failed (%s); trying its rows one by one", batch.id, kind)
    together = Sampled([], {})
    for row_index, row in enumerate(batch.rows):
        alone = _run(executor, Batch.of(batch.id, [row]))
        if row_index < len(batch.decodes.ids):
            # a token of a failed row is never looked at
            together.decoded.append(alone.tokens.get(row.request_id, [0])[0])
        else:
            together.tokens.update(alone.tokens)
        together.failed.update(alone.failed)
        together.blamed.update(alone.blamed)
        together.logprobs.update(alone.logprobs)
    return together


def _failed(batch: Batch, why: str) -> Sampled:
    """The one row of a batch."""
    return Sampled([0] * len(batch.decodes.ids), {}, failed={batch.rows[0].request_id: why})


def executor_works(executor: Executor, fault: Exception) -> None:
    try:
        executor.probe()
    except Exception as broken:
        raise EngineError(
            f"the engine cannot compute any more: {describe(broken)}; it began with: "
            f"{describe(fault)}"
        ) from broken


def report(fault: Exception) -> str:
    """Logs the fault and says how to find it in the log."""
    error_id = uuid.uuid4().hex[:12]
    logger.error("a request failed, error id %s", error_id, exc_info=fault)
    return f"the engine failed on this request; error id {error_id} in its log"


def describe(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"
