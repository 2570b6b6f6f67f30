"""Whatever happens, every request reads only its own KV and says what it would have said alone."""

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from servekit.scheduler.batch import Batch, Progress
from servekit.scheduler.kv import Group
from servekit.scheduler.request import Request, State
from tests.scheduler.fake_executor import VOCAB, FakeExecutor, alone, make_scheduler

BRANCHES = ([0] * 9, [0] * 5 + [1] * 6, [3, 1, 4, 1, 2], [2])
prompts = st.builds(
    lambda branch, tail: [*branch, *tail],
    st.sampled_from(BRANCHES),
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
)


RULES = {
    "order": st.sampled_from(
        ["fcfs", "priority", "shortest_prefill", "longest_prefix", "deadline", "fair", "two_pool"]
    ),
    "reserve": st.sampled_from(["predicted", "worst_case", "greedy"]),
    "victim": st.sampled_from(["cheapest", "last_arrived"]),
    "max_preemptions": st.integers(0, 2),
    "max_skip_ahead": st.integers(0, 3),
    "aging_s": st.sampled_from([0.5, 30.0]),
    "takeovers_per_s": st.sampled_from([0.0, 1.0]),
    "batch_share": st.sampled_from([0.0, 0.3, 1.0]),
    "max_step_ms": st.sampled_from([None, 5.0, 20.0]),
    "decode_slowdown": st.sampled_from([None, 1.5]),
}
KINDS = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["", "a", "b"]),
        "priority": st.integers(-1, 1),
        "slo_class": st.sampled_from(["interactive", "batch"]),
    }
)


class Linear:
    """Step times of a machine on which everything costs something."""

    def seconds(self, decodes, context, prefill=()):
        chunks = sum(1e-3 * new + 1e-5 * new * (new / 2 + there) for new, there in prefill)
        return 1e-3 + 1e-5 * decodes * context + chunks


class Clients:
    """Everybody who asked: what was said to them must be what they would have heard alone."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.said: dict[int, list[int]] = {}
        self.ends: dict[int, Progress] = {}

    def take(self, progress: list[Progress]) -> None:
        for one in progress:
            assert one.request_id not in self.ends, "something followed the end"
            said = self.said.setdefault(one.request_id, [])
            said += one.tokens
            request = self.requests[one.request_id]
            assert said == request.output
            if one.finish is None:
                continue
            self.ends[one.request_id] = one
            truth = alone(request)
            whole = one.finish in ("stop", "length")
            assert said == truth if whole else said == truth[: len(said)]
            assert (one.stop_token is not None) == (one.finish == "stop")
            assert (one.error is not None) == (one.finish == "error")
            assert request.state is State.FINISHED


class AnyTraffic(RuleBasedStateMachine):
    """Arrivals, aborts, holds, failures, drafts and up to three batches in flight, in any order."""

    @initialize(
        policy=st.sampled_from(["continuous", "continuous", "static"]),
        seats=st.integers(1, 5),
        extra_budget=st.integers(0, 12),
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 4),
        prefix_caching=st.booleans(),
        depth=st.integers(1, 3),
        rules=st.fixed_dictionaries(RULES),
        window=st.sampled_from([None, None, Group(3), Group(6), Group(4, chunked=True)]),
        host_blocks=st.sampled_from([0, 0, 6, 30]),
        seconds=st.booleans(),
    )
    def start(
        self,
        policy,
        seats,
        extra_budget,
        num_blocks,
        block_size,
        prefix_caching,
        depth,
        rules,
        window,
        host_blocks,
        seconds,
    ):
        groups = (Group(),) if window is None else (Group(), window)
        self.scheduler = make_scheduler(
            policy=policy,
            seats=seats,
            budget=seats + extra_budget,
            num_blocks=num_blocks * len(groups),
            block_size=block_size,
            prefix_caching=prefix_caching,
            groups=groups,
            host_blocks=host_blocks,
            block_copy_s=1e-6,
            step_time=Linear() if seconds else None,
            slo={"ttft_ms": 5000.0},
            **rules,
        )
        self.executor = FakeExecutor(block_size, groups)
        self.capacity = min(self.scheduler.kv.max_servable_tokens, (num_blocks - 1) * block_size)
        self.depth = depth
        self.now = 0.0
        self.in_flight: deque[Batch] = deque()
        self.clients = Clients()

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 12),
        min_tokens=st.integers(0, 3),
        stops=st.booleans(),
        salt=st.sampled_from([b"", b"", b"tenant"]),
        late=st.booleans(),
        kind=KINDS,
    )
    @precondition(lambda self: self.capacity > 1)
    def arrive(self, prompt, max_tokens, min_tokens, stops, salt, late, kind):
        prompt = prompt[: self.capacity - 1]
        request = Request(
            id=len(self.clients.requests),
            prompt=prompt,
            max_tokens=min(max_tokens, self.capacity - len(prompt)),
            min_tokens=min_tokens,
            stop_ids=frozenset({0} if stops else ()),
            arrived=len(self.clients.requests) - 2.5 * late,
            salt=salt,
            **kind,
        )
        self.clients.requests.append(request)
        self.scheduler.add(request)

    @rule(data=st.data())
    @precondition(lambda self: self.scheduler.requests)
    def abort(self, data):
        id = data.draw(st.sampled_from(sorted(self.scheduler.requests)))
        ended = self.scheduler.abort(id)
        assert (ended is None) == (id in self.clients.ends)
        if ended is not None:
            self.clients.take([ended])

    @rule(data=st.data(), seconds=st.integers(1, 4))
    @precondition(lambda self: list(self.scheduler.line.requests()))
    def hold(self, data, seconds):
        request = data.draw(st.sampled_from(list(self.scheduler.line.requests())))
        self.scheduler.hold(request.id, until=self.scheduler.steps_total + seconds)

    @rule(data=st.data())
    @precondition(lambda self: self.scheduler.line.held)
    def release(self, data):
        self.scheduler.release(data.draw(st.sampled_from(sorted(self.scheduler.line.held))))

    @rule(data=st.data(), wrong=st.booleans(), count=st.integers(1, 4))
    @precondition(lambda self: self.scheduler.running)
    def draft(self, data, wrong, count):
        request = data.draw(st.sampled_from(self.scheduler.running))
        truth = alone(request)[len(request.output) :][:count]
        request.drafts = [*truth[:-1], (truth[-1] + wrong) % VOCAB] if truth else []

    @rule()
    def plan(self):
        self.clients.take(self.scheduler.expire(self.scheduler.steps_total))
        if len(self.in_flight) == self.depth:
            return
        first = min(self.scheduler.running, key=self.scheduler.line.rank, default=None)
        decodes = first is not None and first.in_lock_step
        self.now += 0.25
        batch = self.scheduler.plan(self.now)
        if batch is not None:
            assert batch.rows
            assert batch.num_tokens <= self.scheduler.config.max_num_batched_tokens
            ids = [row.request_id for row in batch.rows]
            assert len(ids) == len(set(ids)) <= self.scheduler.config.max_num_seqs
            self.in_flight.append(batch)
        if len(self.in_flight) == (batch is not None):
            assert batch is not None or not (
                self.scheduler.running or list(self.scheduler.line.requests())
            )
            ids = [row.request_id for row in batch.rows] if batch else []
            taken = first is not None and first.state is not State.RUNNING
            # a prompt may stand behind more urgent ones, but not behind nobody
            behind = not decodes and batch is not None and bool(batch.others)
            assert first is None or first.id in ids or taken or behind

    @rule(data=st.data(), breaks=st.integers(0, 9))
    def commit(self, data, breaks):
        """The batch runs now, after all that was decided since it was planned."""
        if self.in_flight:
            batch = self.in_flight.popleft()
            ids = [row.request_id for row in batch.rows]
            fail = [data.draw(st.sampled_from(ids))] if breaks == 0 else []
            gains = self.scheduler.commit(batch, self.executor.run(batch, fail), 1.0)
            self.clients.take(gains.progress)

    @invariant()
    def nothing_is_broken(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for id in list(self.scheduler.line.held):
            self.scheduler.release(id)
        steps = 0
        while self.scheduler.busy:
            self.plan()
            if self.in_flight:
                batch = self.in_flight.popleft()
                gains = self.scheduler.commit(batch, self.executor.run(batch), 1.0)
                self.clients.take(gains.progress)
            self.scheduler.check()
            steps += 1
            assert steps < 60 * (1 + len(self.clients.requests)), "it does not come to an end"
        stats = self.scheduler.stats()
        assert stats.blocks_free == stats.blocks_total
        assert len(self.clients.ends) == len(self.clients.requests)


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(
    max_examples=200,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
