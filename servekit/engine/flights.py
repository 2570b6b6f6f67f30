"""Batches under way: planned ahead, and run one after another."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servekit.engine.beside import Beside
from servekit.engine.guard import Executor, run_guarded
from servekit.engine.messages import Event
from servekit.engine.runner import Sampled
from servekit.errors import EngineError
from servekit.scheduler.batch import Batch


@dataclass(slots=True, eq=False)
class Flight:
    """A batch from its plan to its end; times are of the loop's clock, in seconds."""

    batch: Batch
    prepared: Any
    """What the executor made of it while it was planned."""
    build_s: float
    """What it took to plan and to prepare it."""
    events: list[Event]
    """What planning it did to requests."""
    started: float | None = None
    ended: float = 0.0
    outcome: Sampled = field(default_factory=lambda: Sampled([], {}))


class Flights:
    """At most `depth` batches, oldest first; the oldest runs, or has run.

    With a `device` thread a batch is run there as soon as the one before is over, whatever this
    thread does meanwhile. Without one it is run when it lands.
    """

    def __init__(
        self,
        executor: Executor,
        depth: int,
        device: Beside[Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.depth = depth
        self.device = device
        self.clock = clock
        self.under_way: deque[Flight] = deque()
        self.over = False
        """Nothing more is run: a step failed, or nobody waits for what it would give."""

    def __len__(self) -> int:
        return len(self.under_way)

    @property
    def room(self) -> bool:
        return len(self.under_way) < self.depth

    @property
    def newest(self) -> int:
        """The number of the batch that was planned last; 0: none is under way."""
        return self.under_way[-1].batch.id if self.under_way else 0

    def launch(self, batch: Batch, events: list[Event], planned: float) -> None:
        """Prepares it here, where nobody plans meanwhile, and has it run. It was begun to be
        planned at `planned`."""
        try:
            prepared = self.executor.prepare(batch)
        except Exception:
            prepared = None  # it is tried again where a fault stays with a request
        flight = Flight(batch, prepared, self.clock() - planned, events)
        self.under_way.append(flight)
        if self.device is not None:
            self.device.start(lambda: self._run(flight))

    def land(self, meanwhile: Callable[[Beside[Any], float], None]) -> Flight:
        """The oldest, once it is over; raises EngineError if nothing can be run any more.

        `meanwhile` is called until then, with the thread it runs in and its seconds so far.
        """
        flight, device = self.under_way[0], self.device
        while device is not None and not device.done:
            began = flight.started
            meanwhile(device, 0.0 if began is None else self.clock() - began)
        self.under_way.popleft()
        if device is None:
            self._run(flight)
        else:
            device.result()
        return flight

    def abandon(self) -> None:
        """Returns once nothing is run any more; what was not begun is not."""
        self.over = True
        if self.device is not None:
            for _ in self.under_way:
                self.device.wait()
        self.under_way.clear()

    def _run(self, flight: Flight) -> None:
        if self.over:
            raise EngineError("this step was not run: the engine is at its end")
        flight.started = self.clock()
        try:
            flight.outcome = run_guarded(self.executor, flight.batch, flight.prepared)
        except BaseException:
            self.over = True
            raise
        flight.ended = self.clock()
