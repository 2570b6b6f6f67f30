"""Keeps a fault where it belongs: with one request, or with the engine."""

import logging
import uuid
from typing import Protocol

from servekit.engine.messages import Sampling
from servekit.engine.runner import Sampled
from servekit.errors import EngineError
from servekit.scheduler.batch import Batch

logger = logging.getLogger(__name__)


class Executor(Protocol):
    def add(self, request_id: int, prompt: list[int], sampling: Sampling) -> None: ...
    def remove(self, request_id: int) -> None: ...
    def run(self, batch: Batch) -> Sampled: ...
    def probe(self) -> None:
        """Runs one token of nobody's; raises if the device is beyond use."""
        ...


def run_guarded(executor: Executor, batch: Batch) -> Sampled:
    """Runs the batch; where that raises, each row alone, so that only faulty ones fail.

    Raises EngineError if nothing can be run, not even a token of our own.
    """
    try:
        return executor.run(batch)
    except Exception as fault:
        if len(batch.rows) == 1:
            executor_works(executor, fault)
            return Sampled({}, failed={batch.rows[0].request_id: report(fault)})
        logger.warning("step %d failed (%s); trying its rows one by one", batch.id, fault)
    together = Sampled({})
    for row in batch.rows:
        alone = run_guarded(executor, Batch(batch.id, [row]))
        together.tokens.update(alone.tokens)
        together.failed.update(alone.failed)
        together.logprobs.update(alone.logprobs)
    return together


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
