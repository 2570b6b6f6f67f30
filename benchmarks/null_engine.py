"""An engine whose model is a pause: the scheduler, the loop and the sockets are real.

As the engine process of a server (`main`), and in the caller's own process (`directly`).
"""

import os
import pickle
import signal
import sys
import time
from collections import deque
from typing import Any

from servekit.config.schema import Config
from servekit.engine.beside import Beside
from servekit.engine.channel import Launch, Mailbox
from servekit.engine.core import EngineCore
from servekit.engine.messages import Deltas, FromEngine, Ready, Sampling, Submit, ToEngine
from servekit.engine.runner import Sampled
from servekit.engine.worker import end_with
from servekit.scheduler.batch import Batch, Copies
from servekit.scheduler.scheduler import Scheduler
from servekit.scheduler.settings import settings_of
from servekit.spec.latency import step_model
from servekit.spec.memory import ledger
from servekit.spec.tabled import Tabled

STEP_MS = "NULL_STEP_MS"
"""Variable with the milliseconds of a step."""
FIRST_WORD, WORDS = 1000, 5000
"""Ids of what it says: ordinary words of any vocabulary of some size."""


class NullExecutor:
    """Takes its time and says words in turn."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.said = 0

    def add(self, request_id: int, prompt: list[int], sampling: Sampling) -> None:
        """Nothing is remembered of a request."""

    def remove(self, request_id: int) -> None:
        """Nor forgotten."""

    def copy(self, copies: Copies) -> None:
        """There is no cache to copy in."""

    def probe(self) -> None:
        """It can always go on."""

    def prepare(self, batch: Batch) -> None:
        """It looks at no batch."""

    def run(self, batch: Batch, prepared: Any = None) -> Sampled:
        del prepared
        time.sleep(self.step_s)
        self.said = (self.said + 1) % WORDS
        token = FIRST_WORD + self.said
        others = {row.request_id: [token] for row in batch.others if row.samples}
        return Sampled([token] * len(batch.decodes.ids), others)


def scheduler_of(config: Config) -> tuple[Scheduler, Ready]:
    layout = ledger(config, weights_bytes=0).layout
    scheduler = Scheduler(settings_of(config, layout, Tabled(step_model(config))))
    ready = Ready(
        max_model_len=config.model.max_model_len,
        max_servable_tokens=scheduler.kv.max_servable_tokens,
        capacity_tokens=layout.capacity_tokens,
        num_blocks=layout.num_blocks,
        weights_bytes=0,
        kv_bytes=0,
        load_s=0.0,
        warmup_s=0.0,
    )
    return scheduler, ready


def main() -> None:
    """What `engine.worker.main` is, without weights."""
    launch: Launch = pickle.load(sys.stdin.buffer)
    end_with(launch.parent_pid)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    mailbox = Mailbox(launch.runtime_dir)
    scheduler, ready = scheduler_of(launch.config)
    mailbox.send(ready)
    executor = NullExecutor(float(os.environ[STEP_MS]) / 1000)
    device: Beside[Any] = Beside()
    core = EngineCore(
        scheduler,
        executor,
        mailbox.receive,
        mailbox.send,
        device=device,
        in_flight=launch.config.engine.in_flight,
    )
    core.run()
    mailbox.close()


def directly(config: Config, step_s: float, prompts: list[list[int]], tokens: int) -> float:
    """Output tokens a second of the engine with nothing around it."""
    scheduler, _ = scheduler_of(config)
    inbox: deque[ToEngine] = deque()
    unfinished = set(range(len(prompts)))

    def drain(wait_s: float | None, until: int | None = None) -> list[ToEngine]:
        messages = list(inbox)
        inbox.clear()
        return messages

    def deliver(message: FromEngine) -> None:
        if isinstance(message, Deltas):
            unfinished.difference_update(
                delta.id for delta in message.others if delta.finish is not None
            )

    core = EngineCore(scheduler, NullExecutor(step_s), drain, deliver)
    started = time.perf_counter()
    for number, prompt in enumerate(prompts):
        inbox.append(Submit(number, prompt, Sampling(tokens, seed=0, temperature=0.0)))
    while unfinished:
        core.step()
    return len(prompts) * tokens / (time.perf_counter() - started)
