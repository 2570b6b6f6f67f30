"""What the engine tells of requests beside their tokens."""

from collections import defaultdict
from typing import Any

from servekit.engine.local import LocalEngine
from servekit.engine.messages import Deltas, Event, FromEngine, Step
from tests.engine.tiny import greedy, prompts, tiny_engine


def told(
    engine: LocalEngine, asked: list[list[int]], words: Any
) -> tuple[list[Step], dict[int, list[Event]]]:
    """The steps, and the events of each request, of a run of these prompts."""
    steps: list[Step] = []
    events: dict[int, list[Event]] = defaultdict(list)
    deliver = engine.core.outbox

    def listen(message: FromEngine) -> None:
        assert isinstance(message, Deltas)
        if message.step is not None:
            steps.append(message.step)
        for event in message.events:
            events[event.id].append(event)
        deliver(message)

    engine.core.outbox = listen
    engine.generate(asked, words)
    return steps, events


def test_a_request_is_seated_and_its_prompt_computed_in_chunks() -> None:
    asked = [[1] * 50, [2] * 7]
    engine = tiny_engine(scheduler={"max_num_batched_tokens": 16})
    steps, events = told(engine, asked, [greedy(4), greedy(4)])
    for id, prompt in enumerate(asked):
        assert [event.kind for event in events[id]].count("seated") == 1
        chunks = [event for event in events[id] if event.kind == "chunk"]
        assert sum(chunk.tokens for chunk in chunks) == len(prompt)
        seat = events[id][0]
        assert seat.kind == "seated"
        assert seat.start <= seat.end <= chunks[0].start <= chunks[0].end
    assert len([event for event in events[0] if event.kind == "chunk"]) > 1
    assert sum(step.prefill_tokens for step in steps) == 57
    assert sum(step.decode_tokens for step in steps) == 2 * 3
    assert all(step.seconds > 0 and step.build_s >= 0 for step in steps)


def test_cached_tokens_are_told_with_the_seat_and_not_as_a_chunk() -> None:
    engine = tiny_engine()
    told(engine, [[3] * 40], [greedy(2)])
    _, events = told(engine, [[3] * 40], [greedy(2)])
    seat, chunk = events[1]
    assert seat.kind == "seated"
    assert chunk.kind == "chunk"
    assert seat.tokens + chunk.tokens == 40
    assert seat.tokens >= 32


def test_every_preemption_is_told_and_followed_by_a_seat() -> None:
    engine = tiny_engine(kv={"capacity_tokens": 112, "block_size": 4, "prefix_caching": False})
    _, events = told(engine, prompts(12), [greedy(10 + index) for index in range(12)])
    kinds = [[event.kind for event in one if event.kind != "chunk"] for one in events.values()]
    assert sum(one.count("preempted") for one in kinds) == (
        engine.scheduler.stats().preemptions_total
    )
    assert any("preempted" in one for one in kinds), "nobody was preempted here"
    for one in kinds:
        assert one[::2] == ["seated"] * len(one[::2])
        assert one[1::2] == ["preempted"] * len(one[1::2])
        assert one[-1] == "seated"


def test_a_step_in_which_all_decode_has_no_event() -> None:
    engine = tiny_engine()
    steps, events = told(engine, [[1, 2, 3]], [greedy(30)])
    assert len(steps) == 30
    assert len(events[0]) == 2
