import pytest

from servekit.scheduler.batch import Outcome
from servekit.scheduler.request import Request
from tests.scheduler.fake_executor import make_scheduler
from tests.scheduler.test_pace import Machine

TARGET = {"ttft_ms": 1000.0, "percentile": 95.0}


class Clock:
    """A scheduler on a machine that takes the time it is said to take; answers are all 7."""

    def __init__(self, *, seats=8, machine=None, **more):
        self.machine = machine or Machine()
        more = {"budget": 2048, "num_blocks": 4000, "block_size": 16, "slo": TARGET} | more
        self.scheduler = make_scheduler(
            seats=seats, step_time=self.machine, max_model_len=20_000, **more
        )
        self.now = 0.0
        self.id = 0

    @property
    def forecast(self):
        return self.scheduler.door.forecast

    def add(self, prompt=500, max_tokens=100, **more):
        self.id += 1
        tokens = list(range(self.id * 10**5, self.id * 10**5 + prompt))
        one = Request(self.id, tokens, max_tokens, arrived=self.now, **more)
        self.scheduler.add(one)
        return one

    def step(self):
        batch = self.scheduler.plan(self.now)
        if batch is None:
            return
        chunks = [(len(row.tokens), row.start) for row in batch.others]
        ids = batch.decodes.ids
        mean = sum(batch.decodes.starts) / len(ids) + 1 if ids else 0.0
        seconds = self.machine.seconds(len(ids), mean, chunks)
        self.now += seconds
        tokens = {row.request_id: [7] for row in batch.others if row.samples}
        self.scheduler.commit(batch, Outcome([7] * len(ids), tokens, seconds=seconds), self.now)

    def until_first_token(self, one):
        while one.first_token_at is None:
            self.step()
        return one.first_token_at - one.arrived


def predicted(clock, prompt=500):
    return clock.forecast.ttft_s(
        Request(10**6, [5] * prompt, 100, arrived=clock.now), clock.scheduler
    )


def test_without_a_model_of_the_machine_nothing_is_predicted():
    scheduler = make_scheduler(slo=TARGET)
    assert scheduler.door.forecast.typical(scheduler) is None


def test_alone_it_is_the_time_of_its_prompt():
    clock = Clock()
    expected = predicted(clock, 2000)
    assert clock.until_first_token(clock.add(2000)) == pytest.approx(expected, rel=0.2)


def test_prompts_ahead_of_it_are_waited_for():
    clock = Clock()
    for _ in range(6):
        clock.add(2000)
    expected = predicted(clock, 2000)
    assert clock.until_first_token(clock.add(2000)) == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize(
    ("limits", "prompt", "least", "off"),
    [
        ({"seats": 4}, 100, 1.5, 0.35),
        ({"seats": 64, "num_blocks": 200, "reserve": "worst_case"}, 600, 2.0, 0.4),
    ],
    ids=["seats", "blocks"],
)
def test_when_there_are_none_left_those_who_run_have_to_end_first(limits, prompt, least, off):
    clock = Clock(**limits)
    for _ in range(40):  # answers of 100 tokens are known
        clock.add(prompt, 100)
    while clock.scheduler.busy:
        clock.step()
    for _ in range(8):
        clock.add(prompt, 100)
    clock.step()
    expected = predicted(clock, prompt)
    one = clock.add(prompt, 100)
    took = clock.until_first_token(one)
    assert took > least
    assert took == pytest.approx(expected, rel=off)


def test_what_is_cached_is_not_waited_for():
    clock = Clock()
    one = clock.add(8000)
    clock.until_first_token(one)
    again = Request(10**6, list(one.prompt), 100, arrived=clock.now)
    expected = clock.forecast.ttft_s(again, clock.scheduler)
    assert expected < predicted(clock, 8000) / 10


def test_a_bias_is_learnt_and_taken_out():
    clock = Clock()
    for _ in range(200):
        clock.forecast.learn(1.0, 1.5)
    assert clock.forecast.corrected(2.0) == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("slo", [TARGET, {}], ids=["with a target", "without"])
def test_of_a_typical_request_the_prompt_is_that_of_those_that_came(slo):
    clock = Clock(slo=slo)
    for _ in range(50):
        clock.until_first_token(clock.add(4000, 1))
    assert clock.forecast.typical(clock.scheduler) == pytest.approx(0.25, rel=0.3)
