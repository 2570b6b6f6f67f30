"""Text is cut exactly at stop strings, however the tokens fall."""

import codecs
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.engine.messages import Delta, TokenLogprobs
from servekit.server.text import Answer, Piece, StopStrings
from tests.server.conftest import END, EOS, ByteStream

letters = st.text(alphabet="abé", max_size=24)
stop_lists = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3)


def split(items: list[int], cuts: list[int]) -> list[list[int]]:
    """`items` in runs, with the last run never empty."""
    places = sorted({cut % max(1, len(items)) for cut in cuts} - {0})
    edges = [0, *places, len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


def cut_by_hand(text: str, stops: list[str], include: bool) -> str:
    """One character at a time: the first stop string to be complete, the longest of those."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end if include else end - max(map(len, found))]
    return text


def answer_of(stops: list[str], include: bool = False, min_tokens: int = 0) -> Answer:
    return Answer(
        stream=ByteStream(skip_special_tokens=True),
        stops=StopStrings(tuple(stops), include),
        min_tokens=min_tokens,
        eos_ids=frozenset({EOS, END}),
    )


def fed(answer: Answer, runs: list[list[int]], finish: str = "length") -> list[Piece]:
    pieces = []
    for index, run in enumerate(runs):
        last = index == len(runs) - 1
        stop = run[-1] if last and finish == "stop" else None
        delta = Delta(0, run, finish=finish if last else None, stop_token=stop)  # type: ignore[arg-type]
        pieces.append(answer.take(delta))
        if answer.finished:
            break
    return pieces


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 99)), include=st.booleans())
@settings(max_examples=300, deadline=None)
def test_pieces_make_the_text_up_to_the_first_stop_whatever_the_split(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    pieces = fed(answer_of(stops, include), split(list(text.encode()), cuts) or [[]])
    expected = cut_by_hand(text, stops, include)
    assert "".join(piece.text for piece in pieces) == expected
    stopped = expected != text or any(text.endswith(stop) for stop in stops)
    assert pieces[-1].finish == ("stop" if stopped else "length")
    assert (pieces[-1].stop_reason in stops) == stopped


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 99)))
@settings(max_examples=200, deadline=None)
def test_invalid_utf8_streams_as_it_decodes_whole(data: bytes, cuts: list[int]) -> None:
    pieces = fed(answer_of([]), split(list(data), cuts) or [[]])
    assert "".join(piece.text for piece in pieces) == codecs.decode(data, errors="replace")


@given(text=st.text(alphabet="abcd", max_size=30), stop=st.text("abcd", min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_never_more_is_held_back_than_the_longest_stop_less_one(text: str, stop: str) -> None:
    stops = StopStrings((stop,), include=False)
    for character in text:
        stops.push(character)
        assert len(stops.held) < len(stop)


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 99)))
@settings(max_examples=200, deadline=None)
def test_logprobs_are_of_the_tokens_whose_text_is_said(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    answer, scored = answer_of(stops), []
    runs = split(list(text.encode()), cuts) or [[]]
    for index, run in enumerate(runs):
        finish = "length" if index == len(runs) - 1 else None
        logprobs = [TokenLogprobs(-1.0, []) for _ in run]
        piece = answer.take(Delta(0, run, logprobs=logprobs, finish=finish))
        scored += piece.scored
        if answer.finished:
            break
    said = bytes(one.token for one in scored).decode()
    assert said == cut_by_hand(text, stops, include=False)


def test_a_stop_token_is_not_said_but_counted() -> None:
    answer = answer_of([])
    (piece,) = fed(answer, [[*b"hi", ord("!")]], finish="stop")
    assert (piece.text, piece.stop_reason) == ("hi", ord("!"))
    assert answer.completion_tokens == 3


def test_a_stop_token_is_said_where_that_is_asked_for() -> None:
    (piece,) = fed(answer_of([], include=True), [[*b"hi!"]], finish="stop")
    assert piece.text == "hi!"


@pytest.mark.parametrize("token", [EOS, END])
def test_an_end_of_sequence_is_no_reason_to_name(token: int) -> None:
    (piece,) = fed(answer_of([]), [[*b"hi", token]], finish="stop")
    assert (piece.finish, piece.stop_reason) == ("stop", None)


def test_a_stop_string_within_the_first_min_tokens_does_not_stop() -> None:
    pieces = fed(answer_of(["b"], min_tokens=3), [[token] for token in b"abcabc"])
    assert "".join(piece.text for piece in pieces) == "abca"


def test_tokens_after_a_stop_in_the_same_step_are_not_counted() -> None:
    answer = answer_of(["b"])
    fed(answer, [list(b"abccc")])
    assert answer.completion_tokens == 2
