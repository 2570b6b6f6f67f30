"""The loop: who comes, whose step ends next, and no clock but this one."""

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count

from servekit.config.schema import Config
from servekit.errors import DoesNotFit, NotBuilt
from servekit.scheduler.settings import StepTime
from servekit.simulator.record import Run, Served
from servekit.simulator.replica import Replica
from servekit.simulator.seats import SeatKeeper
from servekit.simulator.timing import timing
from servekit.spec.kv import KvLayout
from servekit.spec.latency import step_model
from servekit.spec.memory import ledger
from servekit.workload.arrival import Arrival
from servekit.workload.source import Source, source


def simulate(
    config: Config,
    *,
    requests: int,
    seed: int,
    step_time: StepTime | None = None,
    foreseen: bool = False,
    arrivals: Source | None = None,
    ended: Callable[[], None] | None = None,
) -> Run:
    """The first `requests` of the configuration's workload through its scheduler, to the end.

    `step_time` None: as `spec.latency` has it. The scheduler knows only that model either way, and
    corrects it by the steps that it sees, as the engine's does. `arrivals` None: those of the
    workload by the seed. `ended` is called at the end of each request.
    With `foreseen` each request's max_tokens is the length of its answer; without, answers end
    when they end. The same arguments give the same run. Raises DoesNotFit where no block of cache
    is left, NotBuilt for layers that the engine does not run.
    """
    started = time.perf_counter()
    if arrivals is None:
        arrivals = source(config.workload, max_model_len=config.model.max_model_len, seed=seed)
    clients = Clients(arrivals, requests, ended)
    modelled = step_model(config)
    copies = _copies(config, modelled, step_time or modelled, seed, foreseen, clients)
    seats = SeatKeeper(config.scheduler.max_num_seqs)
    with _uncollected():
        seconds = _run(clients, copies, seats, watch_from=requests // 2)
    return Run(
        config=config,
        seed=seed,
        served=[served for served in clients.served if served is not None],
        copies=[copy.record for copy in copies],
        seats=seats.seats,
        seconds=seconds,
        wall_s=time.perf_counter() - started,
        times=str(step_time) if step_time else f"modelled, ± {modelled.band:.0%}",
        cut=clients.cut,
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """A run makes no garbage in circles, and to look for some takes a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _copies(
    config: Config,
    known: StepTime,
    taken: StepTime,
    seed: int,
    foreseen: bool,
    clients: "Clients",
) -> list[Replica]:
    """Of the model, each with a cache and a scheduler of its own; `known` to the scheduler are
    other step times than those that are `taken`, perhaps.
    """
    layout, times = layout_of(config), timing(config, known)
    device = times if taken is known else timing(config, taken)
    return [
        Replica(
            config,
            layout,
            times,
            device,
            number=number,
            seed=seed,
            foreseen=foreseen,
            ended=clients.ended,
        )
        for number in range(config.parallelism.data)
    ]


def layout_of(config: Config) -> KvLayout:
    """The planned cache of one copy; raises DoesNotFit or NotBuilt."""
    layout = ledger(config).layout
    if any(group.kind == "state" for group in layout.groups):
        raise NotBuilt(
            f"{config.model.name} has layers that carry a state, which this release plans but does "
            "not schedule; take another model"
        )
    if layout.num_blocks == 0:
        raise DoesNotFit(
            f"nothing is left for the KV cache of {config.model.name} on {config.hardware.name}; "
            "servekit plan says what would fit"
        )
    return layout


class Clients:
    """Everybody who comes: by themselves, or because of an answer."""

    def __init__(
        self, arrivals: Source, requests: int, told: Callable[[], None] | None = None
    ) -> None:
        self.arrivals = arrivals
        self.told = told
        self.opening = iter(arrivals)
        self.left = requests
        self.coming: list[tuple[float, int, Arrival, bool]] = []
        """A heap; of those who come by themselves only the next."""
        self.order = count()
        self.served: list[Served | None] = []
        self.cut = 0
        """Of those who came, whose requests were shortened to what the model holds."""
        self._open()

    @property
    def next_at(self) -> float:
        return self.coming[0][0] if self.coming and self.left else math.inf

    def next(self) -> tuple[int, Arrival]:
        """Who comes at `next_at`, with a number."""
        _, _, arrival, opens = heappop(self.coming)
        if opens:
            self._open()
        self.left -= 1
        self.cut += arrival.is_cut
        self.served.append(None)
        return len(self.served) - 1, arrival

    def ended(self, number: int, arrival: Arrival, served: Served, now: float) -> None:
        """Note it, and ask the workload who comes because of it."""
        self.served[number] = served
        if self.told is not None:
            self.told()
        if served.end == "finished":
            after = self.arrivals.answered(arrival, now)
        elif served.end == "unfinished":
            after = []
        else:
            after = self.arrivals.unanswered(arrival, now, served.retry_after_s or 1.0)
        for following in after:
            heappush(self.coming, (following.at, next(self.order), following, False))

    def _open(self) -> None:
        arrival = next(self.opening, None)
        if arrival is not None:
            heappush(self.coming, (arrival.at, next(self.order), arrival, True))


def _run(clients: Clients, copies: list[Replica], seats: SeatKeeper, watch_from: int) -> float:
    """Until everybody is served; returns when that was."""
    now, single = 0.0, copies[0]

    def horizon() -> float:
        """Before which nothing comes to the copy that is awake."""
        others = (other.wakes_at for other in copies if other is not copy)
        return min(clients.next_at, min(others, default=math.inf))

    while True:
        copy = single if len(copies) == 1 else min(copies, key=_wakes_at)
        arrives_at = clients.next_at
        if arrives_at < math.inf and arrives_at <= copy.wakes_at:
            now = arrives_at
            number, arrival = clients.next()
            if number == watch_from:
                single.watch(seats)
            chosen = single if len(copies) == 1 else min(copies, key=_outstanding)
            chosen.send(number, arrival)
        elif copy.wakes_at < math.inf:
            now = copy.wakes_at
            copy.wake(now, horizon)
        else:
            break
    for copy in copies:
        copy.close(now)
    return now


def _wakes_at(copy: Replica) -> float:
    return copy.wakes_at


def _outstanding(copy: Replica) -> int:
    """Prompt tokens of requests that it has not ended; what a router sees of them."""
    return copy.outstanding
