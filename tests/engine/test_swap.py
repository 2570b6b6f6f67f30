"""Requests that leave for host memory come back as they were."""

from servekit.engine.local import LocalEngine
from servekit.scheduler.batch import Batch, Copies, Decodes, Row
from tests.engine.tiny import greedy, tiny_engine


def engine_with_host() -> LocalEngine:
    return tiny_engine(kv={"offload_gib": 1e-3, "block_size": 4, "capacity_tokens": 64})


def step(engine: LocalEngine, block: int, start: int, tokens: list[int], copies: Copies) -> list:
    rows = [Row(0, start, tokens, ([block],), samples=True)]
    batch = Batch(1, Decodes([], [], [], []), rows, copies)
    engine.runner.copy(batch.copies)
    return engine.runner.run(batch).tokens[0]


NONE = Copies([], [], [])


def test_what_was_swapped_out_and_in_again_gives_the_same_token():
    engine = engine_with_host()
    engine.runner.add(0, [5, 6, 7], greedy(4))
    first = step(engine, 1, 0, [5, 6, 7], NONE)
    second = step(engine, 1, 3, first, NONE)
    engine.runner.cache.data[:, :, 2] = 9.0
    # block 1 leaves, is overwritten by another's, and comes back elsewhere
    engine.runner.copy(Copies(to_host=[(1, 3)], from_host=[], within=[(2, 1)]))
    assert bool((engine.runner.cache.data[:, :, 1] == 9.0).all())
    assert step(engine, 4, 3, first, Copies([], [(3, 4)], [])) == second


def test_copies_are_made_out_of_the_way_of_what_comes_in():
    engine = engine_with_host()
    data = engine.runner.cache.data
    assert engine.runner.host is not None
    engine.runner.host.data[:, :, 0] = 8.0
    for block in (1, 2):
        data[:, :, block] = float(block)
    engine.runner.copy(Copies(to_host=[(2, 5)], from_host=[(0, 1)], within=[(1, 2)]))
    found = [float(data[0, 0, block, 0, 0, 0]) for block in (1, 2)]
    assert found == [8.0, 1.0]
    assert float(engine.runner.host.data[0, 0, 5, 0, 0, 0]) == 2.0
