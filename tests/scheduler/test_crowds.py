"""Crowds of requests in small caches, by any rules: all are served, and nothing is left behind."""

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.scheduler.request import Request
from tests.scheduler.fake_executor import VOCAB, FakeExecutor, make_scheduler
from tests.scheduler.traffic import BRANCHES, ORDERS, Clients, Linear


def crowd(rng: Random, capacity: int) -> list[Request]:
    """Requests of three shared beginnings, in order of arrival, each with room for its output."""
    requests = []
    for id in range(rng.randint(1, 25)):
        prompt = [*rng.choice(BRANCHES), *(rng.randrange(VOCAB) for _ in range(rng.randint(0, 9)))]
        prompt = prompt[: capacity - 1]
        max_tokens = rng.randint(1, min(25, capacity - len(prompt)))
        stop_ids = frozenset({0} if rng.random() < 0.2 else ())
        requests.append(
            Request(
                id,
                prompt,
                max_tokens,
                stop_ids=stop_ids,
                min_tokens=5,
                arrived=float(id),
                tenant=rng.choice("abc"),
                priority=rng.randint(-1, 1),
                slo_class=rng.choice(["interactive", "batch"]),
            )
        )
    return requests


@pytest.mark.parametrize("policy", ["continuous", "static"])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_crowd_in_a_small_cache_is_served_to_the_last_and_leaves_nothing_behind(policy, seed):
    rng = Random(seed)
    seats, block_size, num_blocks = rng.randint(1, 8), rng.randint(1, 5), rng.randint(3, 30)
    scheduler = make_scheduler(
        policy=policy,
        seats=seats,
        budget=seats + rng.randint(0, 20),
        num_blocks=num_blocks,
        block_size=block_size,
        prefix_caching=rng.random() < 0.7,
        order=rng.choice(ORDERS),
        reserve=rng.choice(["predicted", "worst_case", "greedy", "greedy"]),
        victim=rng.choice(["cheapest", "last_arrived"]),
        max_skip_ahead=rng.randint(0, 4),
        takeovers_per_s=rng.choice([0.0, 1.0]),
        host_blocks=rng.choice([0, 20]),
        step_time=Linear() if rng.random() < 0.5 else None,
        block_copy_s=1e-6,
    )
    executor, clients, in_flight = FakeExecutor(block_size), Clients(), deque()
    arriving, now = crowd(rng, (num_blocks - 1) * block_size), 0.0
    rate, depth = rng.choice([0.2, 1.0, 1.0]), rng.randint(1, 3)
    while arriving or scheduler.busy:
        if arriving and (rng.random() < rate or not scheduler.busy):
            clients.requests.append(arriving.pop(0))
            scheduler.add(clients.requests[-1])
        if scheduler.running and rng.random() < 0.1:
            draft = rng.choice(scheduler.running)
            draft.drafts = clients.truth(draft)[len(draft.output) :][: rng.randint(1, 4)]
        if scheduler.requests and rng.random() < 0.01:
            ended = scheduler.abort(rng.choice(list(scheduler.requests)))
            clients.take([ended] if ended else [])
        now += 0.5
        batch = scheduler.plan(now)
        in_flight.extend([batch] if batch else [])
        if len(in_flight) == depth or (in_flight and not batch):
            oldest = in_flight.popleft()
            fail = [oldest.rows[-1].request_id] if rng.random() < 0.01 else []
            clients.take(scheduler.commit(oldest, executor.run(oldest, fail), 0.0).progress)
        else:
            assert in_flight or not scheduler.busy, "requests, and nothing to do"
        scheduler.check()
    assert len(clients.ends) == len(clients.requests)
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total
