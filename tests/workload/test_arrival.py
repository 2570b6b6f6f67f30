"""Prompts: which begin alike, and how far."""

from hypothesis import given
from hypothesis import strategies as st

from servekit.workload.arrival import Arrival, grown, prompt

RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), min_size=1, max_size=5)


def arrival(runs: list[tuple[int, int]], output: int = 3, answer: int = 99) -> Arrival:
    tokens = sum(count for _, count in runs)
    return Arrival(0.0, tokens, output, tuple(runs), answer)


def alike(one: list[int], other: list[int]) -> int:
    """Tokens at the start that are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_a_prompt_is_its_runs_one_after_the_other() -> None:
    assert prompt(arrival([(4, 2), (7, 3)])) == [4, 4, 7, 7, 7]
    assert arrival([(4, 2), (7, 3)]).prompt == [4, 4, 7, 7, 7]


def test_the_next_turn_repeats_prompt_and_answer_and_adds_to_them() -> None:
    first = arrival([(4, 2), (7, 3)], output=2, answer=9)
    assert first.answer == 9
    then = arrival(list(grown(first, 10, 5)))
    assert then.prompt == [4, 4, 7, 7, 7, 9, 9, 5, 5, 5]


@given(RUNS, st.integers(1, 30), st.integers(1, 200))
def test_a_later_turn_is_as_long_as_asked_and_ends_in_something_new(
    runs: list[tuple[int, int]], output: int, tokens: int
) -> None:
    first = arrival(runs, output)
    then = arrival(list(grown(first, tokens, 1000)))
    said = first.prompt + [99] * output
    assert len(then.prompt) == tokens
    assert alike(then.prompt, said) == min(len(said), tokens - 1)
    assert then.prompt[-1] == 1000


@given(RUNS, RUNS, st.integers(2000, 50_000))
def test_tokens_of_a_vocabulary_begin_alike_where_the_runs_do(
    one: list[tuple[int, int]], other: list[tuple[int, int]], vocabulary: int
) -> None:
    first, second = arrival(one), arrival(other)
    drawn = [prompt(each, vocabulary) for each in (first, second)]
    assert [len(tokens) for tokens in drawn] == [first.prompt_tokens, second.prompt_tokens]
    assert all(0 <= token < vocabulary for tokens in drawn for token in tokens)
    # a run is drawn from its beginning, so runs must begin at the same place to be alike there
    shared = 0
    for (a, n), (b, m) in zip(one, other, strict=False):
        if a == b:
            shared += min(n, m)
        if a != b or n != m:
            break
    assert alike(*drawn) >= shared


def test_runs_of_different_tokens_are_not_alike_in_a_vocabulary_either() -> None:
    one, other = prompt(arrival([(2, 64)]), 50_000), prompt(arrival([(4, 64)]), 50_000)
    assert alike(one, other) < 16
