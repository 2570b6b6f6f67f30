"""Whatever happens, every request reads only its own KV and says what it would have said alone."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from servekit.scheduler.groups import Group
from tests.scheduler import many_traces
from tests.scheduler.fake_executor import VOCAB
from tests.scheduler.traffic import BRANCHES, ORDERS, Traffic

prompts = st.builds(
    lambda branch, tail: [*branch, *tail],
    st.sampled_from(BRANCHES),
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
)

RULES = {
    "policy": st.sampled_from(["continuous", "continuous", "static"]),
    "seats": st.integers(1, 5),
    "extra_budget": st.integers(0, 12),
    "num_blocks": st.integers(3, 14),
    "block_size": st.integers(1, 4),
    "prefix_caching": st.booleans(),
    "depth": st.integers(1, 3),
    "window": st.sampled_from([None, None, Group(3), Group(6), Group(4, chunked=True)]),
    "host_blocks": st.sampled_from([0, 0, 6, 30]),
    "seconds": st.booleans(),
    "order": st.sampled_from(ORDERS),
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
        "min_tokens": st.integers(0, 3),
        "stops": st.booleans(),
        "salt": st.sampled_from([b"", b"", b"tenant"]),
        "tenant": st.sampled_from(["", "a", "b"]),
        "priority": st.integers(-1, 1),
        "slo_class": st.sampled_from(["interactive", "batch"]),
    }
)


class AnyTraffic(RuleBasedStateMachine):
    """`Traffic`, in any order."""

    @initialize(rules=st.fixed_dictionaries(RULES))
    def start(self, rules):
        self.traffic = Traffic(**rules)
        self.scheduler = self.traffic.scheduler

    @rule(prompt=prompts, max_tokens=st.integers(1, 12), late=st.booleans(), kind=KINDS)
    @precondition(lambda self: self.traffic.capacity > 1)
    def arrive(self, prompt, max_tokens, late, kind):
        arrived = len(self.traffic.clients.requests) - 2.5 * late
        self.traffic.arrive(prompt, max_tokens, arrived=arrived, **kind)

    @rule(data=st.data())
    @precondition(lambda self: self.scheduler.requests)
    def abort(self, data):
        self.traffic.abort(data.draw(st.sampled_from(sorted(self.scheduler.requests))))

    @rule(data=st.data(), steps=st.integers(1, 4))
    @precondition(lambda self: list(self.scheduler.line.requests()))
    def hold(self, data, steps):
        request = data.draw(st.sampled_from(list(self.scheduler.line.requests())))
        self.traffic.hold(request, steps)

    @rule(data=st.data())
    @precondition(lambda self: self.scheduler.line.held)
    def release(self, data):
        self.scheduler.release(data.draw(st.sampled_from(sorted(self.scheduler.line.held))))

    @rule(data=st.data(), wrong=st.booleans(), count=st.integers(1, 4))
    @precondition(lambda self: self.scheduler.running)
    def draft(self, data, wrong, count):
        request = data.draw(st.sampled_from(self.scheduler.running))
        self.traffic.draft(request, count, wrong=wrong)

    @rule()
    def plan(self):
        self.traffic.plan()

    @rule(data=st.data(), breaks=st.integers(0, 9))
    @precondition(lambda self: self.traffic.in_flight)
    def commit(self, data, breaks):
        ids = [row.request_id for row in self.traffic.in_flight[0].rows]
        self.traffic.commit([data.draw(st.sampled_from(ids))] if breaks == 0 else [])

    @invariant()
    def nothing_is_broken(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self):
        if hasattr(self, "traffic"):
            self.traffic.end()


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(
    max_examples=200,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_small_traces_come_to_an_end_though_rivals_keep_coming():
    many_traces.run(300, of=0)
