"""The engine process with its phases drawn out, so that a test can act within each.

SLOW in the environment has seconds: `{"load": 5, "warmup": 5, "prefill": 3, "step": 0.02}`.
"""

import json
import os
import time
from typing import Any

from servekit.engine import assemble, flights, worker
from servekit.scheduler.batch import Batch

SLOW: dict[str, float] = json.loads(os.environ["SLOW"])
PROMPT = 8
"""Tokens from which on a row is a prompt."""


def loaded(work: Any) -> Any:
    def slowly(*arguments: Any) -> Any:
        *_, report = arguments
        report(0, 10)
        time.sleep(SLOW.get("load", 0.0))
        return work(*arguments)

    return slowly


def warmed(work: Any) -> Any:
    def slowly(runner: Any, config: Any, layout: Any, report: Any) -> Any:
        report(0, 10)
        time.sleep(SLOW.get("warmup", 0.0))
        return work(runner, config, layout, report)

    return slowly


def stepped(work: Any) -> Any:
    def slowly(executor: Any, batch: Batch, prepared: Any) -> Any:
        prefills = any(len(row.tokens) >= PROMPT for row in batch.others)
        time.sleep(SLOW.get("prefill", 0.0) if prefills else SLOW.get("step", 0.0))
        return work(executor, batch, prepared)

    return slowly


def main() -> None:
    assemble.load_decoder = loaded(assemble.load_decoder)
    assemble.warm_up = warmed(assemble.warm_up)
    flights.run_guarded = stepped(flights.run_guarded)
    worker.main()
