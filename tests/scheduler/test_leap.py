"""Steps taken at once leave a scheduler as if they had been taken one by one."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servekit.scheduler.batch import Outcome
from servekit.scheduler.chains import Chain
from servekit.scheduler.scheduler import Scheduler
from tests.scheduler.fake_executor import VOCAB, FakeExecutor, make_scheduler, request
from tests.scheduler.traffic import Linear

REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), st.integers(1, 90)),
    min_size=1,
    max_size=6,
)
RULES = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["fcfs", "priority", "fair", "two_pool"]),
        "reserve": st.sampled_from(["predicted", "worst_case", "greedy"]),
        "policy": st.sampled_from(["continuous", "static"]),
        "seats": st.integers(1, 4),
        "num_blocks": st.integers(30, 80),
        "prefix_caching": st.booleans(),
    }
)


def told(chain: Chain) -> list[Any]:
    owner = chain.owner.id if chain.owner else None
    where = [chain.head, chain.first, chain.tokens, chain.blocks, chain.ever, chain.offers]
    return [*where, owner, chain.computing, chain.prompt_end, chain.tail, chain.tail_end]


def books(scheduler: Scheduler) -> list[Any]:
    """All that later decisions rest on."""
    kv, pool, pace = scheduler.kv, scheduler.kv.pool, scheduler.pace
    held = [(r.id, r.tokens, r.tables, r.sealed, r.computed) for r in scheduler.running]
    blocks = [pool.empty, pool.evictable, pool.holders, pool.block_of]
    known = [told(it) if isinstance(it, Chain) else it for it in pool.content]
    learnt = [pace.step_s, pace.decoding.steps, pace.decoding.log]
    return [held, blocks, known, kv.cache.siblings.after, kv.cache.merged_total, learnt]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=REQUESTS, rules=RULES, data=st.data())
def test_a_leap_is_as_many_single_steps(asked, rules, data):
    single, leaping = (make_scheduler(step_time=Linear(), **rules) for _ in range(2))
    executor = FakeExecutor(4)
    for id, (prompt, answer) in enumerate(asked):
        for scheduler in (single, leaping):
            scheduler.add(request(id, list(prompt), answer))
    while single.busy:
        most = leaping.leap.most()
        steps = data.draw(st.integers(0, min(most, 40))) if most else 0
        ids = list(leaping.seats.decoding.ids)
        said: dict[int, list[int]] = {id: [] for id in ids}
        seconds = []
        for _ in range(steps or 1):
            batch, same = single.plan(0.0), None if steps else leaping.plan(0.0)
            assert batch is not None
            assert steps or same == batch
            ran = executor.run(batch)
            outcome = Outcome(ran.decoded, ran.tokens, seconds=1e-3 * (1 + batch.id % 7))
            if steps:
                assert batch.decodes.ids == ids
                assert not batch.others
                seconds.append(outcome.seconds)
                for id, token in zip(ids, outcome.decoded, strict=True):
                    said[id].append(token)
            elif same is not None:
                leaping.commit(same, outcome, 0.0)
            single.commit(batch, outcome, 0.0)
        if steps:
            free = leaping.leap.take([said[id] for id in ids], seconds)
            assert len(free) == steps
        assert books(leaping) == books(single)
        leaping.check()
    assert not leaping.busy


def test_no_leap_goes_past_the_last_row_of_anybody_or_what_blocks_there_are():
    scheduler, executor = make_scheduler(num_blocks=12), FakeExecutor(4)
    assert scheduler.leap.most() == 0
    scheduler.add(request(1, prompt=3, max_tokens=9))
    batch = scheduler.plan(0.0)
    assert scheduler.leap.most() == 0, "something is in flight"
    scheduler.commit(batch, executor.run(batch), 0.0)
    batch = scheduler.plan(0.0)
    scheduler.commit(batch, executor.run(batch), 0.0)
    assert len(scheduler.requests[1].tokens) == 5
    row, last = scheduler.requests[1].computed, 12 - 2
    assert scheduler.leap.most() == last - row, "the last row is planned as any other"
    scheduler.add(request(2, prompt=3, max_tokens=9))
    assert scheduler.leap.most() == 0, "somebody may be seated"
