"""Places in blocks in use that hold no token: what paging wastes."""

from tests.engine.tiny import greedy, prompts, tiny_engine


def test_unfilled_places_are_those_behind_the_last_token_of_each() -> None:
    engine = tiny_engine(kv={"block_size": 8, "capacity_tokens": 2048, "prefix_caching": False})
    for prompt in prompts(6):
        engine.submit(prompt, greedy(40))
    seen = set()
    for _ in range(20):
        engine.core.step()
        stats, running = engine.scheduler.stats(), engine.scheduler.running
        places = (stats.blocks_total - stats.blocks_free) * 8
        # of a prompt that is not computed yet the blocks are taken all the same
        filled = sum(max(request.computed, len(request.prompt)) for request in running)
        assert stats.slots_unfilled == places - filled
        seen.add(stats.slots_unfilled)
    assert len(seen) > 5


def test_cached_tokens_are_in_free_blocks_and_never_more_than_those() -> None:
    engine = tiny_engine(kv={"block_size": 4, "capacity_tokens": 256})
    for prompt in prompts(12):
        engine.submit(prompt, greedy(10))
    seen = set()
    while engine.scheduler.busy or not seen:
        engine.core.step()
        stats = engine.scheduler.stats()
        assert stats.blocks_remembering <= min(stats.blocks_free, stats.blocks_cached)
        seen.add(stats.blocks_remembering)
    assert stats.blocks_remembering == stats.blocks_cached > 0, "nobody holds any"
    assert len(seen) > 3


def test_nothing_is_unfilled_where_a_block_is_a_token() -> None:
    engine = tiny_engine(kv={"block_size": 1, "capacity_tokens": 512})
    engine.submit([1, 2, 3], greedy(5))
    engine.core.step()
    assert engine.scheduler.stats().slots_unfilled == 0
