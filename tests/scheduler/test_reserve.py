import random
from statistics import NormalDist

import pytest

from servekit.scheduler.groups import KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.lengths import OutputLengths
from servekit.scheduler.predicted import BUDGET, KEEP_STEPS, KEEP_STEPS_TIGHT, RESERVES
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings
from tests.conftest import tiny_config
from tests.scheduler.fake_executor import FakeExecutor, drain, make_scheduler, request, step

SIZE = 16


class World:
    """Requests with seats in a cache of `blocks`, and a reserve that watches them."""

    def __init__(self, name, blocks=1001, quantile=0.95):
        config = tiny_config(scheduler={"reserve": name, "reserve_quantile": quantile})
        kv = KvSettings(blocks, SIZE, prefix_caching=False)
        self.lengths = OutputLengths()
        settings = Settings(config.scheduler, config.slo, kv, 100_000)
        self.reserve = RESERVES[name](settings, self.lengths)
        self.kv = KvBlocks(kv)
        self.running = []
        self.step = 0

    def learn(self, *lengths, max_tokens=8000):
        for id, length in enumerate(lengths):
            ended = Request(id, [1] * 64, max_tokens)
            ended.tokens += [2] * length
            ended.finish = "stop"
            self.lengths.finished(ended)

    def asked(self, one):
        return self.reserve.blocks(one, self.running, self.kv, self.step)

    def seat(self, id, prompt=64, max_tokens=8000, done=0):
        one = Request(1000 + id, [1] * prompt, max_tokens)
        one.tokens += [2] * done
        self.asked(one)
        self.kv.seat(one, self.kv.lookup(one))
        self.running.append(one)
        self.reserve.seated(one)
        return one

    def leave(self, one):
        self.running.remove(one)
        self.kv.release(one)
        self.reserve.left(one)


def newcomer(prompt=64, max_tokens=8000):
    return Request(1, [1] * prompt, max_tokens)


def test_greedy_asks_for_nothing():
    world = World("greedy")
    world.seat(1)
    assert world.asked(newcomer()) == 0


def test_worst_case_asks_for_what_all_lack_to_their_max_tokens():
    world = World("worst_case")
    world.seat(1, prompt=64, max_tokens=65)  # 4 blocks now, 8 at its end
    world.seat(2, prompt=64, max_tokens=17)  # 4 now, 5 at its end
    assert world.asked(newcomer(64, 33)) == 4 + 1 + (6 - 5)
    world.leave(world.running[0])
    assert world.asked(newcomer(64, 33)) == 1 + (6 - 5)


@pytest.mark.parametrize("seed", range(20))
def test_with_worst_case_nobody_is_ever_preempted(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    scheduler, executor = make_scheduler(num_blocks=24, reserve="worst_case"), FakeExecutor(4)
    for id in range(1, 30):
        scheduler.add(request(id, prompt=rng.randint(1, 20), max_tokens=rng.randint(1, 40)))
        step(scheduler, executor)
    drain(scheduler, executor)
    assert scheduler.stats().preemptions_total == 0


def test_with_greedy_the_same_kind_of_load_preempts():
    scheduler, executor = make_scheduler(num_blocks=24, reserve="greedy"), FakeExecutor(4)
    for id in range(1, 30):
        scheduler.add(request(id, prompt=10, max_tokens=40))
        step(scheduler, executor)
    drain(scheduler, executor)
    assert scheduler.stats().preemptions_total > 0


def test_before_anything_is_known_predicted_expects_answers_to_be_long():
    world = World("predicted")
    world.seat(1, max_tokens=1600)
    assert 75 < world.asked(newcomer(64, 1600)) <= 2 * 100


def test_predicted_asks_for_much_less_once_answers_are_known_to_be_short():
    world = World("predicted")
    world.learn(*[100] * 500)
    for id in range(20):
        world.seat(id)
    assert world.asked(newcomer()) < 21 * 10 < 21 * 500


def test_blocks_that_are_given_back_before_they_are_needed_count():
    """Those that are about to end hold more than all the others will take."""
    world = World("predicted")
    world.learn(*[200] * 1000)
    for id in range(20):
        world.seat(id)
    alone = world.asked(newcomer())
    for id in range(20, 32):
        world.seat(id, prompt=640, done=195)
    assert world.asked(newcomer()) < alone / 2


def test_who_leaves_is_no_longer_counted():
    world = World("predicted")
    world.learn(*[400] * 500)
    before = world.asked(newcomer())
    for id in range(10):
        world.seat(id)
    assert world.asked(newcomer()) > before + 50
    for one in list(world.running):
        world.leave(one)
    assert world.asked(newcomer()) == before


def test_counting_one_by_one_gives_what_counting_all_gives():
    rng = random.Random(5)
    world = World("predicted")
    world.learn(*[rng.randint(10, 600) for _ in range(500)])
    for id in range(30):
        world.seat(id, prompt=rng.randint(10, 200))
        if id % 3 == 0:
            world.leave(rng.choice(world.running))
    before = world.asked(newcomer())
    world.step += max(KEEP_STEPS, KEEP_STEPS_TIGHT)
    assert world.asked(newcomer()) == pytest.approx(before, abs=8)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_the_surer_it_is_to_be_the_more_is_asked_for(quantile):
    asked = []
    for sure in (quantile, quantile + 0.009):
        world = World("predicted", quantile=sure)
        rng = random.Random(1)
        world.learn(*[int(rng.lognormvariate(5, 1.5)) + 1 for _ in range(2000)])
        for id in range(30):
            world.seat(id)
        asked.append(world.asked(newcomer()))
    assert asked[0] < asked[1]


@pytest.mark.parametrize("quantile", [0.8, 0.95, 0.99])
def test_what_is_asked_for_suffices_as_often_as_it_should(quantile):
    """Forty answers that have just begun run on as they will, a thousand times."""
    seed = 7
    print(f"seed {seed}")
    rng = random.Random(seed)
    world = World("predicted", blocks=100_001, quantile=quantile)
    world.learn(*[length(rng) for _ in range(4000)])
    for id in range(39):
        world.seat(id, prompt=64)
    asked = world.asked(newcomer(64))
    short = sum(peak([length(rng) for _ in range(40)]) > asked for _ in range(1000))
    assert short / 1000 <= 1.0 - quantile


def length(rng):
    return int(rng.lognormvariate(4.5, 0.8)) + 1


def peak(lengths):
    """Blocks that are taken at the worst time, beyond 4 each and the newcomer's fifth."""
    ends = sorted(lengths)
    taken = [(len(ends) - n) * -(-(63 + end) // SIZE) for n, end in enumerate(ends)]
    return max(taken) - 4 * len(ends) - 1


def test_the_fewer_answers_are_known_the_more_is_asked_for():
    asked = []
    for times in (1, 4, 40):
        world = World("predicted")
        world.learn(*[40, 80, 120, 160, 200] * times)
        for id in range(30):
            world.seat(id)
        asked.append(world.asked(newcomer()))
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > 1.1 * asked[-1]


def test_after_a_preemption_more_is_asked_for_until_enough_have_ended_without_one():
    world = World("predicted")
    world.learn(*[random.Random(id).randint(10, 600) for id in range(3000)])
    for id in range(30):
        world.seat(id)
    before = world.asked(newcomer())
    world.reserve.failed()
    warned = world.asked(newcomer())
    assert warned > before
    world.learn(*[300] * round(1 / BUDGET))
    world.step += KEEP_STEPS
    world.asked(newcomer())
    assert world.reserve.wary == pytest.approx(0.0, abs=1e-9)


def test_those_that_run_are_counted_where_they_are_once_the_first_answers_have_ended():
    """One of forty is at its end after two tokens: the others are not taken to end as soon."""
    world = World("predicted")
    for id in range(40):
        world.seat(id)
    world.asked(newcomer())
    for one in world.running:
        one.tokens += [2, 2]
    world.step += 1
    one = world.running[0]
    one.finish = "stop"
    world.lengths.finished(one)
    world.leave(one)
    assert world.lengths.survival(one).beyond(3) < 0.7
    world.asked(newcomer())
    assert world.lengths.survival(one).beyond(3) > 0.9


def test_close_times_are_held_to_a_stricter_quantile():
    world = World("predicted", quantile=0.9)
    world.learn(*[300] * 1000)
    world.asked(newcomer())
    sigmas = world.reserve.sigmas
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[-1] == pytest.approx(NormalDist().inv_cdf(0.9))
