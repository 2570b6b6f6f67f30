import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.groups import KvSettings
from servekit.scheduler.pace import CLOSE, LOOK_AHEAD, LOST, Drift, Pace
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings
from tests.conftest import tiny_config
from tests.scheduler.fake_executor import FakeExecutor, make_scheduler, request

BLOCK = 16


class Machine:
    """A step of 10 ms, 0.1 ms a decode, 20,000 prompt tokens a second, longer ones slower."""

    def __init__(self, times=1.0):
        self.times = times
        self.asked = 0

    def seconds(self, decodes, context, prefill=()):
        self.asked += 1
        tokens = sum(new for new, _ in prefill)
        pairs = sum(new * (there + new / 2) for new, there in prefill)
        return self.times * (0.01 + 1e-4 * decodes + 5e-5 * tokens + 1e-9 * pairs)


def make_pace(machine=None, budget=4096, **scheduler):
    config = tiny_config(
        scheduler={"max_num_seqs": 512, "max_num_batched_tokens": budget, **scheduler}
    )
    kv = KvSettings(1000, BLOCK)
    return Pace(Settings(config.scheduler, config.slo, kv, 100_000, machine))


def prompt(tokens, due=math.inf):
    one = Request(1, [1] * tokens, 10)
    one.due = due
    return one


def given_out(meter, *prompts):
    """Tokens that each prompt (start, missing) gets."""
    found = []
    for start, missing in prompts:
        tokens = meter.allow(start, missing)
        if tokens:
            meter.spend(start, tokens)
        found.append(tokens)
    return found


def test_without_a_model_of_the_machine_only_tokens_count():
    meter = make_pace(None, max_step_ms=1.0).meter(0.0, 96, 500.0)
    assert given_out(meter, (0, 3000), (0, 3000), (0, 10)) == [3000, 1000, 0]
    assert meter.full


def test_guesses_take_room_from_prompts():
    meter = make_pace().meter(0.0, 96, 500.0, guesses=1000)
    assert given_out(meter, (0, 9000)) == [3000]


def test_when_nobody_decodes_a_step_takes_all_it_may():
    machine = Machine()
    meter = make_pace(machine, max_step_ms=20.0, decode_slowdown=1.5).meter(0.0, 0, 0.0)
    assert given_out(meter, (0, 100_000)) == [4096]
    assert machine.asked == 0


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 5000)), min_size=1, max_size=6),
    st.floats(12.0, 200.0),
)
def test_a_step_stays_within_its_time_and_uses_it(decodes, prompts, limit_ms):
    machine = Machine()
    meter = make_pace(machine, max_step_ms=limit_ms).meter(0.0, decodes, 500.0)
    found = given_out(meter, *prompts)
    chunks = [(n, start) for n, (start, _) in zip(found, prompts, strict=True) if n]
    seconds = machine.seconds(decodes, 500.0, chunks)
    alone = machine.seconds(decodes, 500.0)
    if alone >= limit_ms / 1000:
        limit_ms = 1000 * LOST * alone
    if found[0] > BLOCK:
        assert seconds <= limit_ms / 1000 * (1 + 1e-9)
    lacks = next((i for i, n in enumerate(found) if n < prompts[i][1]), None)
    if lacks is not None and meter.tokens:
        start = prompts[lacks][0]
        block = machine.seconds(decodes, 500.0, [*chunks, (BLOCK, start)])
        assert block > limit_ms / 1000 * (1 - 2 * CLOSE)


@given(st.integers(0, 90_000), st.integers(BLOCK, 5000), st.floats(1.0, 1.001))
def test_the_first_prompt_gets_a_block_however_little_time_there_is(start, missing, share):
    machine = Machine()
    limit_ms = share * 1000 * machine.seconds(100, 500.0) + 1e-6
    meter = make_pace(machine, max_step_ms=limit_ms).meter(0.0, 100, 500.0)
    assert given_out(meter, (start, missing), (0, 100)) == [BLOCK, 0]


@given(st.floats(0.1, 9.0))
def test_where_decodes_alone_take_too_long_prompts_get_half_as_much_again(limit_ms):
    machine = Machine()
    alone = machine.seconds(100, 500.0)
    assert alone > limit_ms / 1000
    meter = make_pace(machine, max_step_ms=limit_ms).meter(0.0, 100, 500.0)
    (tokens,) = given_out(meter, (0, 4000))
    assert tokens > BLOCK
    assert machine.seconds(100, 500.0, [(tokens, 0)]) <= LOST * alone * (1 + 1e-9)


def test_a_chunk_is_found_with_few_questions():
    machine = Machine()
    meter = make_pace(machine, max_step_ms=50.0).meter(0.0, 100, 500.0)
    assert given_out(meter, (60_000, 40_000)) == [256]
    assert machine.asked <= 8


def test_who_got_no_blocks_leaves_the_room_to_others():
    meter = make_pace(Machine(), max_step_ms=50.0).meter(0.0, 100, 500.0)
    assert meter.allow(0, 100_000) > 0
    assert not meter.full
    assert given_out(meter, (0, 100)) == [100]


SLOW = {"max_step_ms": 100.0, "decode_slowdown": 2.0}


def seconds_of_step(pending, now=0.0, **scheduler):
    machine = Machine()
    meter = make_pace(machine, **{**SLOW, **scheduler}).meter(now, 100, 500.0, pending)
    (tokens,) = given_out(meter, (0, 50_000))
    return machine.seconds(100, 500.0, [(tokens, 0)])


def test_decodes_are_slowed_down_no_more_than_they_may_be():
    assert seconds_of_step([prompt(3000)]) == pytest.approx(0.04, rel=0.05)
    assert seconds_of_step([prompt(3000)], decode_slowdown=3.0) == pytest.approx(0.06, rel=0.05)


def test_a_prompt_that_would_be_late_is_hurried():
    """3000 tokens take 0.3 s at the slow pace, and 0.19 s at the fast one."""
    assert seconds_of_step([prompt(3000, due=1.0)]) == pytest.approx(0.04, rel=0.05)
    assert seconds_of_step([prompt(3000, due=0.25)]) == pytest.approx(0.1, rel=0.05)


def test_what_is_ahead_of_a_prompt_counts():
    pending = [prompt(3000), prompt(3000, due=0.5)]
    assert seconds_of_step(pending) == pytest.approx(0.1, rel=0.05)


def test_one_prompt_that_will_be_late_anyway_is_not_hurried_but_a_backlog_is():
    assert seconds_of_step([prompt(100_000, due=1.0)]) == pytest.approx(0.04, rel=0.05)
    backlog = [prompt(100_000, due=1.0), prompt(3000, due=1.0)]
    assert seconds_of_step(backlog) == pytest.approx(0.1, rel=0.05)


def test_no_more_prompts_are_looked_at_than_tell():
    looked = []

    def endless():
        for id in chain(range(10**9)):
            looked.append(id)
            yield prompt(1)

    seconds_of_step(endless())
    assert len(looked) <= LOOK_AHEAD


def test_a_machine_slower_than_its_model_gets_smaller_chunks():
    told, real = Machine(), Machine(times=2.0)
    pace = make_pace(told, max_step_ms=50.0)
    for _ in range(40):
        meter = pace.meter(0.0, 100, 500.0)
        given_out(meter, (0, 50_000))
        pace.observe(meter, real.seconds(100, 500.0, meter.chunks))
        pace.decoded(100, 500.0, real.seconds(100, 500.0))
    assert real.seconds(100, 500.0, meter.chunks) == pytest.approx(0.05, rel=0.05)
    assert pace.seconds(100, 500.0) == pytest.approx(0.04, rel=0.05)


def test_decoding_and_mixed_steps_are_corrected_apart():
    pace = make_pace(Machine(), max_step_ms=50.0)
    for _ in range(100):
        pace.decoded(100, 500.0, 3 * Machine().seconds(100, 500.0))
    assert pace.decoding.factor == pytest.approx(3.0, rel=0.01)
    assert pace.mixed.factor == 1.0


def test_one_odd_step_moves_the_correction_little():
    drift = Drift()
    for _ in range(50):
        drift.learn(1.0, 1.0)
    drift.learn(1000.0, 1.0)
    assert drift.factor < 1.05


def test_the_room_of_the_last_step_with_prompts_is_known():
    pace = make_pace(Machine(), max_step_ms=50.0)
    meter = pace.meter(0.0, 100, 500.0)
    (tokens,) = given_out(meter, (0, 50_000))
    pace.observe(meter, 0.05)
    assert pace.budget_tokens == tokens


def test_sixteen_decodes_beside_a_long_prompt_go_on_in_twice_their_time_at_most():
    machine = Machine()
    scheduler = make_scheduler(
        seats=17, budget=4096, num_blocks=30_000, max_model_len=200_000, step_time=machine, **SLOW
    )
    executor = FakeExecutor(4)
    for id in range(1, 17):
        scheduler.add(request(id, prompt=8, max_tokens=60))
    took, long = [], None
    while len(took) < 50:
        if len(took) == 10:
            long = Request(99, list(range(10**6, 10**6 + 3000)), 4)
            scheduler.add(long)
        batch = scheduler.plan(0.0)
        chunks = [(len(row.tokens), row.start) for row in batch.others]
        seconds = machine.seconds(len(batch.decodes.ids), 20.0, chunks)
        took.append(seconds)
        outcome = executor.run(batch)
        scheduler.commit(batch, type(outcome)(outcome.decoded, outcome.tokens, {}, seconds), 0.0)
    assert long.first_token_at is not None
    assert max(took[10:]) <= 2.0 * machine.seconds(16, 20.0)
