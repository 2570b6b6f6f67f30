"""A line without the rest of a scheduler, and a desk that serves it."""

from collections.abc import Callable, Iterable
from typing import Any

from servekit.scheduler.groups import KvSettings
from servekit.scheduler.prefix_cache import Hit
from servekit.scheduler.request import Request, State
from servekit.scheduler.settings import Settings, StepTime
from servekit.scheduler.waiting import Line, line_of
from tests.conftest import tiny_config


class FakeKv:
    """What lines ask of a cache, by request id; a request holds a block for each four tokens."""

    def __init__(self) -> None:
        self.cached: dict[int, int] = {}
        self.surviving: dict[int, int] = {}
        self.freed: dict[int, int] = {}
        self.num_host_free = 0
        self.computed_by_another: set[int] = set()
        self.lookups = 0

    def probable_hit(self, request: Request) -> int:
        self.lookups += 1
        return self.cached.get(request.id, 0)

    def lookup(self, request: Request) -> Hit:
        return Hit(self.probable_hit(request), ([],))

    def is_computed_by_another(self, request: Request, hit: Hit) -> bool:
        return request.id in self.computed_by_another

    def surviving_tokens(self, request: Request) -> int:
        return self.surviving.get(request.id, 0)

    def freed_by(self, request: Request) -> int:
        return self.freed.get(request.id, -(-request.computed // 4))


class TokenTime:
    """So many seconds for each prompt token, and none for the rest."""

    def __init__(self, seconds: float) -> None:
        self.each = seconds

    def seconds(self, decodes: float, context: float, prefill: Any = ()) -> float:
        return sum(new for new, _ in prefill) * self.each


def line_settings(step_time: StepTime | None = None, **scheduler: Any) -> Settings:
    seats = scheduler.setdefault("max_num_seqs", 4)
    scheduler.setdefault("max_num_batched_tokens", max(64, seats))
    config = tiny_config(scheduler=scheduler)
    return Settings(config.scheduler, config.slo, KvSettings(100, 4), 10_000, step_time)


def make_line(
    kv: FakeKv | None = None, step_time: StepTime | None = None, **scheduler: Any
) -> Line:
    return line_of(line_settings(step_time, **scheduler), kv or FakeKv())  # type: ignore[arg-type]


def asks(id: int, prompt: int = 3, max_tokens: int = 4, **more: Any) -> Request:
    """Arrives at its id, unless it says when."""
    due = more.pop("due", None)
    made = Request(id, [7] * prompt, max_tokens, **{"arrived": float(id), **more})
    if due is not None:
        made.due = due
    return made


def ids(requests: Iterable[Request]) -> list[int]:
    return [request.id for request in requests]


def seat(line: Line, request: Request, now: float = 0.0, computed: int = 0) -> Request:
    """What a scheduler does that gives it a seat."""
    request.computed = computed
    line.seated(request, now)
    request.state = State.RUNNING
    return request


def leave(line: Line, request: Request, now: float = 0.0) -> None:
    """What a scheduler does that preempts it."""
    line.ended(request)
    request.restart()
    request.preemptions += 1
    line.add(request)


class Desk:
    """Serves a line: in each step one token for each that decodes, and `budget` prompt tokens.

    `tokens` counts prompt tokens computed and output given, by tenant and by class.
    """

    def __init__(
        self, line: Line, budget: int = 16, fits: Callable[[Request], bool] = lambda request: True
    ) -> None:
        self.line, self.budget, self.fits = line, budget, fits
        self.running: list[Request] = []
        self.done: list[int] = []
        self.started: dict[int, float] = {}
        self.prompt: dict[str, int] = {}
        self.output: dict[str, int] = {}

    def step(self, now: float) -> None:
        for request in list(self.running):
            if request.computed == len(request.tokens):
                request.tokens.append(0)
                request.computed = request.wanted = len(request.tokens)
                self._count(self.output, request, 1)
                if request.wanted == request.limit:
                    self.running.remove(request)
                    self.line.ended(request)
                    request.state = State.FINISHED
                    self.done.append(request.id)
        self._prompts(now)

    def _prompts(self, now: float) -> None:
        lacking = [request for request in self.running if request.computed < request.wanted]
        room = self.budget
        for request in self.line.merged(lacking, now):
            if request.state is State.WAITING:
                if not self.fits(request):
                    self.line.passed(request, now)
                    continue
                seat(self.line, request, now)
                self.running.append(request)
                self.started.setdefault(request.id, now)
            chunk = min(room, request.wanted - request.computed)
            request.computed += chunk
            self.line.charge(request, chunk)
            self._count(self.prompt, request, chunk)
            room -= chunk
            if not room:
                break

    @staticmethod
    def _count(tokens: dict[str, int], request: Request, new: int) -> None:
        for key in (request.tenant, request.slo_class):
            tokens[key] = tokens.get(key, 0) + new
