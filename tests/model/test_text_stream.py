"""Text of a growing sequence is the text of the whole sequence, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from servekit.errors import WeightsError
from servekit.model.text_stream import TextStream, TokenBytes, token_table
from tests.model.tiny_tokenizers import SPECIAL, byte_level, sentencepiece, user_defined

BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece()
TABLES = [token_table(BYTE_LEVEL), token_table(SENTENCEPIECE)]
ORDINARY = [
    "hello world",
    " two  spaces ",
    "naïve café",
    "你好，世界",
    "🙂👩‍💻",
    "a\n\n\tb 123",
    "<b>",
]


def cut(ids: list[int], places: list[int]) -> list[list[int]]:
    edges = [0, *sorted(place % (len(ids) + 1) for place in places), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]


@given(data=st.data(), skip=st.booleans(), table=st.sampled_from(TABLES))
def test_any_ids_cut_anywhere_give_the_text_of_all_at_once(
    data: st.DataObject, skip: bool, table: TokenBytes
):
    ids = data.draw(st.lists(st.integers(0, len(table.pieces) + 2), max_size=40))
    places = data.draw(st.lists(st.integers(0, 40), max_size=8))
    stream = TextStream(table, skip_special_tokens=skip)
    text = "".join(stream.push(piece) for piece in cut(ids, places)) + stream.finish()
    whole = b"".join(table.piece(token_id, skip) for token_id in ids)
    if table.strips_space:
        whole = whole.removeprefix(b" ")
    assert text == whole.decode(errors="replace")


@given(data=st.binary(max_size=24))
def test_any_bytes_one_by_one_are_replaced_as_a_whole_decode_replaces_them(data: bytes):
    table = TokenBytes([bytes([byte]) for byte in range(256)], frozenset(), strips_space=False)
    stream = TextStream(table)
    text = "".join(stream.push([byte]) for byte in data) + stream.finish()
    assert text == data.decode(errors="replace")


@pytest.mark.parametrize("backend", [BYTE_LEVEL, SENTENCEPIECE])
@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_comes_out_as_the_library_decodes_it(backend: Tokenizer, text: str):
    ids = backend.encode(text, add_special_tokens=False).ids
    stream = TextStream(token_table(backend))
    assert "".join(stream.push([token_id]) for token_id in ids) + stream.finish() == text
    assert backend.decode(ids) == text


def test_only_an_unfinished_character_is_held_back():
    ids = BYTE_LEVEL.encode("a🙂b").ids
    stream = TextStream(TABLES[0])
    assert [stream.push([token_id]) for token_id in ids] == ["a", "", "", "", "🙂", "b"]


def test_a_character_that_never_ends_is_replaced_at_the_finish():
    stream = TextStream(TABLES[0])
    stream.push(BYTE_LEVEL.encode("🙂").ids[:3])
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_shown_when_they_are_not_skipped():
    ids = BYTE_LEVEL.encode("a<|im_end|>").ids
    assert TextStream(TABLES[0]).push(ids) == "a"
    assert TextStream(TABLES[0], skip_special_tokens=False).push(ids) == "a<|im_end|>"


def test_a_first_word_keeps_its_space_when_it_continues_a_prompt():
    ids = SENTENCEPIECE.encode("the dog", add_special_tokens=False).ids
    assert TextStream(TABLES[1]).push(ids) == "the dog"
    assert TextStream(TABLES[1], continues_text=True).push(ids) == " the dog"


def test_an_added_token_is_its_own_text():
    backend = byte_level()
    backend.add_tokens([user_defined("<think>é ")])
    table = token_table(backend)
    assert table.pieces[-1] == "<think>é ".encode()
    assert table.special == frozenset(range(len(SPECIAL)))


def test_a_decoder_of_another_kind_is_named():
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.WordPiece()
    with pytest.raises(WeightsError, match="decodes with WordPiece; supported are ByteLevel and"):
        token_table(backend)
