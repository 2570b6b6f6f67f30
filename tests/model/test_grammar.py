"""What a grammar permits is text of the tokenizer's own tokens, whatever kind it is."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from servekit.model.grammar import Compiler, choice_grammar, json_grammar, regex_grammar, words
from servekit.model.tokenizer import Tokenizer, load_tokenizer
from servekit.model.vocabulary import Vocabulary, vocabulary_of
from tests.model.tiny_tokenizers import byte_level, save_folder, save_gguf, sentencepiece


def byte_level_folder(folder: Path) -> Path:
    config = {"eos_token": "<|im_end|>"}
    return save_folder(folder, byte_level(), tokenizer_config=config)


def byte_level_gguf(folder: Path) -> Path:
    path = folder / "byte_level.gguf"
    return save_gguf(path, byte_level(), "gpt-2", ggml__eos_token_id=2)


def sentencepiece_folder(folder: Path) -> Path:
    return save_folder(folder, sentencepiece(), tokenizer_config={"eos_token": "</s>"})


def sentencepiece_gguf(folder: Path) -> Path:
    return save_gguf(folder / "pieces.gguf", sentencepiece(), ggml__eos_token_id=2)


KINDS = [byte_level_folder, byte_level_gguf, sentencepiece_folder, sentencepiece_gguf]


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    make: Callable[[Path], Path] = request.param
    return load_tokenizer(make(tmp_path))


def allowed(matcher: LLMatcher) -> list[int]:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return [int(token) for token in np.flatnonzero(np.unpackbits(bits, bitorder="little"))]


def said(matcher: LLMatcher, tokenizer: Tokenizer, rng: random.Random) -> str:
    """At random, until an end is drawn."""
    ids: list[int] = []
    while True:
        permitted = allowed(matcher)
        assert not matcher.is_error(), matcher.get_error()
        token = rng.choice(permitted)
        assert tokenizer.token_bytes(token) or token in tokenizer.eos_ids
        assert (token in tokenizer.eos_ids) <= matcher.is_accepting()
        if token in tokenizer.eos_ids:
            stream = tokenizer.text_stream(continues_text=True)
            return stream.push(ids) + stream.finish()
        ids.append(token)
        assert matcher.consume_token(token)


def test_random_answers_are_the_choices(tokenizer: Tokenizer) -> None:
    choices = [" the fox", "the fox", "né 你好\U0001f600", "<|im_end|>", "a\nb", "</s>"]
    start = compiler(tokenizer).compile(choice_grammar(choices))
    rng = random.Random(0)
    assert {said(start.deep_copy(), tokenizer, rng) for _ in range(150)} == set(choices)


def compiler(tokenizer: Tokenizer) -> Compiler:
    return Compiler(vocabulary_of(tokenizer, tokenizer.vocab_size))


def test_what_the_tokenizer_makes_of_json_is_permitted(tokenizer: Tokenizer) -> None:
    text = '{"name": "the quick né", "n": [1234567890, -1.5e3, null]}'
    matcher = compiler(tokenizer).compile(json_grammar({"type": "object"}))
    ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.token_bytes(ids[0]) == b" ":  # which this kind puts before every text
        ids = ids[1:]
    assert matcher.consume_tokens(ids), matcher.get_error()
    assert matcher.is_stopped()
    assert set(allowed(matcher)) == tokenizer.eos_ids


BYTES = Vocabulary([bytes([byte]) for byte in range(255)] + [b"\xff"], [255])

LISTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("blanks", ["\n \t", "\n\t ", " \n\t", "\t\r\n "])
@pytest.mark.parametrize("names", [["name"], ["name", "tags"]])
def test_a_model_that_prefers_blanks_comes_to_an_end(blanks: str, names: list[str]) -> None:
    """With a list that may be there or not."""
    matcher = Compiler(BYTES).compile(json_grammar(LISTED))
    words = ["{", *[part for name in names for part in (f'"{name}"', ":", VALUES[name], ",")]]
    words[-1], text = "}", ""
    for sign in "".join(words):
        while not inside(text) and (blank := preferred(matcher, blanks)):
            assert matcher.consume_token(ord(blank))
            text += blank
        assert matcher.consume_token(ord(sign)), text + sign
        text += sign
    assert matcher.is_stopped()
    assert json.loads(text).keys() == set(names)
    assert len(text) < 45 * len(words)


def preferred(matcher: LLMatcher, signs: str) -> str:
    permitted = allowed(matcher)
    return next((sign for sign in signs if ord(sign) in permitted), "")


VALUES = {"name": '"a"', "tags": "[]"}


def inside(text: str) -> bool:
    """A string, whose blanks are its own."""
    return text.count('"') % 2 == 1


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
def test_json_may_be_indented(indent: int | str | None, new_line: str) -> None:
    text = json.dumps({"name": "a b", "tags": ["x", "y"]}, indent=indent)
    matcher = Compiler(BYTES).compile(json_grammar(LISTED))
    assert matcher.consume_tokens(list(text.replace("\n", new_line).encode()))
    assert matcher.is_stopped()


def test_digits_and_word_characters_are_ascii(tokenizer: Tokenizer) -> None:
    start, rng = compiler(tokenizer).compile(regex_grammar("\\d\\w")), random.Random(1)
    assert all(said(start.deep_copy(), tokenizer, rng).isascii() for _ in range(50))


def test_an_embedding_smaller_than_the_vocabulary_cuts_it(tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(tokenizer, 300)
    assert len(vocabulary.pieces) == 300
    assert Compiler(vocabulary).vocab_size == 300


def test_a_byte_that_no_text_has_is_never_permitted() -> None:
    pieces = [bytes([byte]) for byte in range(256)] + [b"", b"\xff\xfe"]
    matcher = Compiler(Vocabulary(pieces, [256])).compile(regex_grammar("(?s).+"))
    assert 255 not in allowed(matcher)
    assert 257 not in allowed(matcher)
    assert 0xC3 in allowed(matcher)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("NoExtensionBias\n<non-verbose/>", "it allows no text at all"),
        ('Unimplemented keys: ["not", "if"]', 'the schema keyword "not", "if" is not supported'),
        ("at 2(8): bad\n   1 | start: x\n         ^", "bad"),
        ("regex parse error:\n    (a\n    ^\nerror: unclosed group", "unclosed group"),
    ],
)
def test_an_error_is_said_in_one_line_without_the_grammar(error: str, said: str) -> None:
    assert words(error) == said
