from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.scheduler.groups import KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request

SYSTEM = list(range(900, 908))


def blocks(num_blocks: int = 20, **more: object) -> KvBlocks:
    return KvBlocks(KvSettings(num_blocks=num_blocks, block_size=4, **more))  # type: ignore[arg-type]


def served(kv: KvBlocks, prompt: list[int], salt: bytes = b"") -> dict[str, int]:
    """Serve one alone; returns what it missed, without the zeros."""
    before = dict(kv.cache.misses.tokens)
    request = Request(1, prompt, 8, salt=salt)
    kv.seat(request, kv.lookup(request))
    request.computed = request.committed = len(prompt)
    request.tokens.append(7)
    kv.committed(request)
    kv.release(request)
    kv.take_copies()
    counts = {reason: count - before[reason] for reason, count in kv.cache.misses.tokens.items()}
    return {reason: count for reason, count in counts.items() if count}


def test_a_new_prompt_is_first_seen_and_its_end_is_no_full_block():
    assert served(blocks(), [*SYSTEM, 1, 2]) == {"first_seen": 8, "unaligned": 2}


def test_the_last_token_is_never_found():
    assert served(blocks(), SYSTEM) == {"first_seen": 4, "unaligned": 4}
    kv = blocks()
    served(kv, SYSTEM)
    assert served(kv, SYSTEM) == {"unaligned": 1}


def test_what_made_room_is_missed_as_evicted():
    kv = blocks(num_blocks=4)
    served(kv, [*SYSTEM, 1])
    served(kv, [5] * 9)
    assert served(kv, [*SYSTEM, 1]) == {"evicted": 8, "unaligned": 1}


def test_a_prompt_known_under_another_salt_is_missed_for_that():
    kv = blocks()
    served(kv, [*SYSTEM, 1], b"a")
    assert served(kv, [*SYSTEM, 1], b"b") == {"salt": 8, "unaligned": 1}
    assert served(kv, [6] * 9, b"b") == {"first_seen": 8, "unaligned": 1}


def test_without_a_prefix_cache_all_is_missed_for_that():
    assert served(blocks(prefix_caching=False), [*SYSTEM, 1]) == {"disabled": 9}


def test_a_request_is_counted_once_however_often_it_is_seated():
    kv = blocks()
    request = Request(1, [*SYSTEM, 1], 8)
    kv.seat(request, kv.lookup(request))
    request.admitted_at = 0.0
    kv.release(request)
    request.restart()
    kv.seat(request, kv.lookup(request))
    assert sum(kv.cache.misses.tokens.values()) == kv.query_tokens_total == 9


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=16), st.sampled_from([b"", b"x"])),
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(prompts=prompts, num_blocks=st.integers(6, 12), caching=st.booleans())
def test_every_prompt_token_is_found_or_missed(prompts, num_blocks, caching):
    kv = blocks(num_blocks=num_blocks, prefix_caching=caching)
    for prompt, salt in prompts:
        served(kv, prompt, salt)
    assert kv.hit_tokens_total + sum(kv.cache.misses.tokens.values()) == sum(
        len(p) for p, _ in prompts
    )


def test_old_ghosts_are_forgotten():
    kv = blocks(num_blocks=4)
    misses = kv.cache.misses
    misses.remembered = kv.cache.chains.remembered = 3
    served(kv, [*SYSTEM, 1])
    for number in range(9):
        served(kv, [number] * 9)
    assert sum(map(len, misses.ghosts + misses.older_ghosts)) <= 2 * 4 + 4
    assert kv.cache.chains.num_gone <= 3
    assert served(kv, [*SYSTEM, 1]) == {"first_seen": 8, "unaligned": 1}
