"""A cache whose memory is a dictionary, and requests that come and go in it as a seed says.

A cell holds the position and the hash of all tokens up to it, so a block that is used too early,
kept too short or shared between prefixes that differ shows as soon as a row reads it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from servekit.scheduler.batch import Copies
from servekit.scheduler.groups import Group, KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request

Cell = tuple[bytes, int, int]


class Memory:
    """Blocks of both sides; copies are applied as `Copies` says."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.device: dict[int, list[Cell | None]] = {}
        self.host: dict[int, list[Cell | None]] = {}

    def copy(self, copies: Copies) -> None:
        for pairs, source, target in (
            (copies.to_host, self.device, self.host),
            (copies.within, self.device, self.device),
            (copies.from_host, self.host, self.device),
        ):
            assert len({to for _, to in pairs}) == len(pairs), "a block is written twice"
            read = [list(source.get(block) or [None] * self.block_size) for block, _ in pairs]
            target.update(zip((to for _, to in pairs), read, strict=True))

    def write(self, request: Request, position: int, cell: Cell | None) -> None:
        for table in request.tables:
            block = table[position // self.block_size]
            assert block, "the null block is written"
            cells = self.device.setdefault(block, [None] * self.block_size)
            cells[position % self.block_size] = cell

    def read(self, request: Request, number: int, position: int) -> Cell | None:
        block = request.tables[number][position // self.block_size]
        assert block, f"{request.id} reads position {position} of group {number}, given back"
        return self.device[block][position % self.block_size]


def cell(request: Request, position: int, truth: list[int]) -> Cell:
    return (request.salt, position, hash(tuple(truth[: position + 1])))


@dataclass
class Flight:
    copies: Copies
    rows: list[tuple[Request, int, int]] = field(default_factory=list)
    """Each with the positions that it computes."""


class World:
    """Plans and commits as a scheduler does, but for its reasons: those are drawn."""

    def __init__(self, settings: KvSettings, rng: Random, prompts: Iterable[list[int]]) -> None:
        self.kv, self.rng, self.settings = KvBlocks(settings), rng, settings
        self.memory = Memory(settings.block_size)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.leaving: list[Request] = []
        self.flights: deque[Flight] = deque()
        self.truths: dict[int, list[int]] = {}
        self.prompts = list(prompts)
        self.prompt_tokens = self.swaps = self.idle = 0

    def arrive(self, max_tokens: int, salt: bytes = b"") -> None:
        most = self.kv.max_servable_tokens
        prompt = self.rng.choice(self.prompts)[: min(200, most) - 1]
        request = Request(
            len(self.truths), list(prompt), max(1, min(max_tokens, most - len(prompt))), salt=salt
        )
        answer = [self.rng.randrange(3) for _ in range(request.max_tokens)]
        self.truths[request.id] = [*prompt, *answer]
        self.waiting.append(request)

    def seat(self) -> None:
        request = self.rng.choice(self.waiting)
        hit = self.kv.lookup(request)
        if self.rng.random() < 0.7 and self.kv.is_computed_by_another(request, hit):
            return
        free, lacking = self.kv.num_free, self.kv.lacking(request, hit)
        if lacking > free:
            return
        if request.admitted_at is None:
            self.prompt_tokens += len(request.prompt)
        self.kv.seat(request, hit)
        assert free - lacking <= self.kv.num_free, "seating took more than was said"
        request.admitted_at = 0.0
        self.waiting.remove(request)
        self.running.append(request)

    def plan(self) -> None:
        """Rows of some of those that run; whoever lacks a block may make another give way."""
        flight = Flight(Copies([], [], []))
        for request in list(self.running):
            if request not in self.running or self.rng.random() < 0.2:
                continue
            start, missing = request.computed, request.wanted - request.computed
            if missing > 1:
                chunk = self.rng.randint(1, min(missing, self.settings.step_tokens))
                end = self.kv.prepare(request, start + chunk)
                assert request.in_flight or end > start, "its own blocks are not enough"
            elif missing == 1 and self.reach(request):
                end = start + 1
            else:
                continue
            if end > start:
                flight.rows.append((request, start, end))
                request.computed = end
                request.in_flight += 1
                if end == request.wanted < request.limit - 1 and not self.rng.randrange(3):
                    request.wanted += 1
        if flight.rows:
            flight.copies = self.kv.take_copies()
            self.flights.append(flight)

    def reach(self, request: Request) -> bool:
        if self.kv.reaches(request, request.computed):
            return True
        while not self.kv.can_extend(request):
            idle = [r for r in self.running if not r.in_flight and r is not self.running[0]]
            if not idle or self.leaving:
                return False
            loser = self.rng.choice(idle)
            self.preempt(loser)
            if loser is request:
                return False
        self.kv.extend(request)
        return True

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        expected, free = self.kv.freed_by(request), self.kv.num_free
        shared = [self.kv.pool.holders[block] > 1 for block in request.tables[0]]
        if self.rng.random() < 0.5 and self.kv.swap_out(request):
            self.swaps += 1
            request.wanted = len(request.tokens)
        else:
            self.kv.release(request)
            request.restart()
        if shared == sorted(shared, reverse=True) or all(g.window for g in self.settings.groups):
            alike = len(self.settings.groups) == 1
            assert not alike or self.kv.num_free - free == expected, "it freed what was not said"
        self.waiting.append(request)

    def commit(self) -> None:
        flight = self.flights.popleft()
        self.memory.copy(flight.copies)
        for request, start, end in flight.rows:
            self.compute(request, start, end)
        for request, _, end in flight.rows:
            request.in_flight -= 1
            if request in self.leaving:
                if not request.in_flight:
                    self.kv.release(request)
                    self.leaving.remove(request)
                continue
            if end == len(request.tokens):
                request.tokens.append(self.truths[request.id][end])
                request.wanted = max(request.wanted, min(end + 1, request.limit - 1))
            request.committed = end
            self.kv.committed(request)
            if len(request.tokens) == request.limit:
                self.leave(request)

    def leave(self, request: Request) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
            self.kv.release(request)
            return
        self.running.remove(request)
        if request.in_flight:
            self.leaving.append(request)
        else:
            self.kv.release(request)

    def compute(self, request: Request, start: int, end: int) -> None:
        truth = self.truths[request.id]
        for position in range(start, end):
            self.memory.write(request, position, cell(request, position, truth))
        for number, group in enumerate(self.settings.groups):
            for position in range(group.seen_from(start), end):
                found = self.memory.read(request, number, position)
                assert found == cell(request, position, truth), f"{request.id} reads {found}"

    def step(self, depth: int) -> None:
        rng = self.rng
        for _ in range(rng.randint(0, 2)):
            if self.waiting:
                self.seat()
        idle = [r for r in self.running if not r.in_flight]
        if idle and rng.random() < 0.06:
            self.preempt(rng.choice(idle))
        everyone = self.running + self.waiting
        if everyone and rng.random() < 0.03:
            self.leave(rng.choice(everyone))
        self.plan()
        if len(self.flights) >= depth or (self.flights and rng.random() < 0.3):
            self.commit()
        self.check()

    def check(self) -> None:
        self.kv.check([*self.waiting, *self.running, *self.leaving])
        kv = self.kv
        assert kv.hit_tokens_total + sum(kv.cache.misses.tokens.values()) == self.prompt_tokens
        assert kv.query_tokens_total == self.prompt_tokens

    def drain(self) -> None:
        """Everybody comes to an end, and leaves nothing behind."""
        steps = 0
        while self.running or self.waiting or self.leaving:
            self.step(1)
            steps += 1
            assert steps < 20_000, "it does not come to an end"
        while self.flights:
            self.commit()
        self.kv.take_copies()
        self.kv.check([])
        assert self.kv.num_free == self.settings.num_blocks - 1, "a block leaked"
        assert self.kv.num_host_free == self.settings.host_blocks, "a host block leaked"


BRANCHES = ([0] * 9, [0] * 5 + [1] * 6, [3, 1, 4, 1, 2], [2], [1, 0] * 17)


def drawn(seed: int, groups: tuple[Group, ...] | None = None) -> World:
    """A small world whose every size hangs on the seed."""
    rng = Random(seed)
    if groups is None:
        kinds = (Group(), Group(rng.randint(1, 9)), Group(rng.randint(1, 9), chunked=True))
        groups = tuple(rng.choice(kinds) for _ in range(rng.randint(1, 3)))
    settings = KvSettings(
        num_blocks=rng.randint(3, 30) * len(groups),
        block_size=rng.randint(1, 5),
        groups=groups,
        prefix_caching=rng.random() < 0.8,
        host_blocks=rng.choice([0, 6, 40]),
        step_tokens=rng.randint(1, 12),
    )
    prompts = [
        [*rng.choice(BRANCHES), *(rng.randrange(3) for _ in range(rng.randint(0, 9)))]
        for _ in range(6)
    ]
    return World(settings, rng, prompts)


def live(world: World, requests: int = 12) -> None:
    """Requests arrive, are served and leave, with up to three batches in flight."""
    depth = world.rng.randint(1, 3)
    while len(world.truths) < requests:
        if world.rng.random() < 0.4:
            world.arrive(world.rng.randint(1, 14), world.rng.choice([b"", b"", b"tenant"]))
        world.step(depth)
    world.drain()
