"""Grammars of constrained answers, by the library llguidance.

A grammar is a text in its Lark dialect, made here of a JSON Schema, a regular expression or a list
of choices. Compiled, it says at every step which tokens may come next. Nothing here needs torch.

No byte is forced into a certain token (`no_forcing`): the model keeps the choice between all tokens
that go on in a permitted way, and no tokenizer is called from the library.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from servekit.model.vocabulary import Vocabulary

WHITESPACE = r"\x20|\x0D?\x0A(\x20{0,32}|\x09{0,16})"
"""Between two words of JSON: a blank, or a new line and its indentation, 16 levels deep at most. A
model that has fallen into blanks would write them until its tokens are used up."""

JSON_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
"""A schema is kept to the letter or refused; `x-guidance` of the client's cannot change that."""

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""States are 1 to 2 kB each: a grammar has at most 100 MB. The library's other limits bound the
mask of one token to some 20 ms."""

HEAD = '%llguidance {"no_forcing": true}\nstart: '
END = b"\xff[end]"
"""Stands for an end token; 0xff, which no text has, marks control tokens for the library."""

TRIAL_WALKS, TRIAL_TOKENS = 4, 16
"""What explodes does so at once."""


def json_grammar(schema: Any) -> str:
    """Of JSON that is valid under `schema`, an object or a bool as decoded from JSON."""
    if isinstance(schema, dict):
        schema = schema | {"x-guidance": JSON_OPTIONS}
    elif schema is True:
        schema = {"x-guidance": JSON_OPTIONS}
    return f"{HEAD}%json {msgspec.json.encode(schema).decode()}"


def regex_grammar(pattern: str) -> str:
    """Of texts that `pattern`, in the syntax of Rust's `regex`, matches from end to end.

    Digits (`\\d`) and word characters (`\\w`) are ASCII, as in JavaScript and JSON Schema.
    """
    return f"{HEAD}/{regex_to_lark(pattern, 'dw')}/"


def choice_grammar(choices: Sequence[str]) -> str:
    """Of one of `choices`, exactly."""
    return regex_grammar("|".join("".join(map(_literal, choice)) for choice in choices))


def _literal(character: str) -> str:
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\x{{{ord(character):X}}}"


class _Wrapper:
    """A vocabulary in the form that LLTokenizer reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [b"" if piece.startswith(b"\xff") else piece for piece in vocabulary.pieces]
        for token in vocabulary.eos_ids:
            self.tokens[token] = END
        self.eos_token_id = vocabulary.eos_ids[0]
        self.special_token_ids = vocabulary.eos_ids

    def __call__(self, text: str) -> list[int]:
        raise AssertionError("nothing is forced, so nothing is tokenised")


class Compiler:
    """Compiles for one vocabulary, which has an end token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.eos_ids, "an answer could not end"
        self._tokenizer = LLTokenizer(_Wrapper(vocabulary), eos_token=vocabulary.eos_ids)  # type: ignore[arg-type]

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.vocab_size)

    def compile(self, grammar: str) -> LLMatcher:
        """At its beginning, its first mask computed; `get_error` says what is wrong with it.

        Others run meanwhile. A grammar that comes from outside is tried in `grammar_child` first:
        some take for ever.
        """
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher

    def objection(self, grammar: str) -> str:
        """What stands against it, in a few words; "" for nothing.

        Some texts are begun, to learn of a grammar that allows nothing, or is too much for the
        limits as soon as it is used.
        """
        start = self.compile(grammar)
        for walk in range(TRIAL_WALKS):
            matcher = start.deep_copy()
            self._begin_a_text(matcher, walk)
            if matcher.is_error():
                return words(matcher.get_error())
        return ""

    def _begin_a_text(self, matcher: LLMatcher, walk: int) -> None:
        mask = allocate_token_bitmask(1, self.vocab_size)
        for place in range(TRIAL_TOKENS):
            if matcher.is_stopped():
                break
            fill_next_token_bitmask(matcher, mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            # far apart from one step and walk to the next, and the same every time
            chosen = int(allowed[(place + 1) * walk * 7919 % len(allowed)])
            if matcher.is_error() or not matcher.consume_token(chosen):
                break


def words(error: str) -> str:
    """The library's error without the grammar that it quotes, and in one line."""
    said = error.partition("\n<")[0]
    if said == "NoExtensionBias":
        return "it allows no text at all"
    said = re.split(r"\n +\d+ \| ", said)[0]
    said = re.sub(r"^at \d+\(\d+\): ", "", said).removeprefix("failed to compile JSON schema: ")
    if keywords := re.fullmatch(r"Unimplemented keys: \[(.*)\]", said):
        return f"the schema keyword {keywords[1]} is not supported"
    if "oneOf constraints are not supported" in said:
        return (
            'the schema keyword "oneOf" is supported only where its alternatives exclude each '
            "other; use anyOf"
        )
    *_, last = re.split(r"\nerror: ", said)
    return " ".join(last.split())
