"""Blocks in a chain are found, evicted and counted as if each had been hashed when it came.

Only where a block is missing before one that is still known may a duplicate stay that would have
been merged; these seeds do not meet that.
"""

from random import Random

import pytest

from servekit.scheduler.groups import Group, KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request
from tests.scheduler.kv_world import World, drawn

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


class Awake(World):
    """Nothing stays in a chain."""

    def check(self) -> None:
        for head in list(self.kv.cache.chains.asleep):
            self.kv.cache.index.wake(head)
        super().check()


def lives(world: World, requests: int) -> list[object]:
    """What can be seen of its cache from outside, step by step."""
    depth, seen = world.rng.randint(1, 3), []
    while len(world.truths) < requests:
        if world.rng.random() < 0.4:
            world.arrive(world.rng.randint(1, 14), world.rng.choice([b"", b"", b"tenant"]))
        world.step(depth)
        kv = world.kv
        tables = [request.tables for request in world.running]
        seen.append((tables, kv.cache.index.num_cached, dict(kv.cache.misses.tokens)))
    world.drain()
    return [*seen, world.kv.hit_tokens_total, world.kv.cache.merged_total]


@pytest.mark.parametrize("seed", range(150))
def test_a_chain_serves_as_its_blocks_would(seed: int) -> None:
    asleep = drawn(seed, (Group(),))
    awake = Awake(asleep.settings, Random(), asleep.prompts)
    awake.rng.setstate(asleep.rng.getstate())
    assert lives(asleep, 14) == lives(awake, 14)


def served(kv: KvBlocks, id: int, prompt: list[int]) -> Request:
    request = Request(id, prompt, 4)
    kv.seat(request, kv.lookup(request))
    request.computed = request.committed = len(prompt)
    kv.committed(request)
    return request


def test_of_a_prompt_that_nobody_knows_one_block_is_hashed() -> None:
    kv = KvBlocks(KvSettings(20, 2))
    first = served(kv, 1, PROMPT)
    assert len(first.hashes) == 1
    assert kv.cache.index.num_cached == 5
    other = Request(2, [*PROMPT[:6], 0, 0, 0], 4)
    assert kv.lookup(other).tokens == 6
    assert not kv.cache.chains.asleep, "somebody asked for it"
    kv.release(first)
    kv.check([])


def test_a_chain_that_is_evicted_is_known_to_have_been_there() -> None:
    kv = KvBlocks(KvSettings(8, 2))
    kv.release(served(kv, 1, PROMPT))
    kv.release(served(kv, 2, list(range(20, 34))))
    assert not kv.lookup(Request(3, PROMPT, 4)).tokens
    before = dict(kv.cache.misses.tokens)
    kv.release(served(kv, 3, PROMPT))
    gained = {why: n - before[why] for why, n in kv.cache.misses.tokens.items() if n > before[why]}
    assert gained == {"evicted": 8, "unaligned": 2}
