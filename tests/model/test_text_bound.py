"""No text of a tokenizer has fewer tokens than its length over its longest token."""

from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from servekit.model.text_bound import longest_token
from servekit.model.text_stream import token_table
from tests.model.tiny_tokenizers import byte_level, sentencepiece


def bound(backend: tokenizers.Tokenizer) -> int | None:
    return longest_token(backend, token_table(backend).pieces)


def composing() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


@pytest.mark.parametrize("make", [byte_level, sentencepiece, composing])
@given(data=st.data())
def test_text_is_never_longer_than_its_tokens_allow(make: Any, data: Any) -> None:
    backend = make()
    longest = bound(backend)
    assert longest is not None
    text = data.draw(st.text(max_size=60))
    assert len(text) <= longest * max(1, len(backend.encode(text).ids))


def removing(backend: tokenizers.Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Whitespace()


def collapsing(backend: tokenizers.Tokenizer) -> None:
    backend.normalizer = normalizers.Replace(Regex(" +"), " ")


def swallowing(backend: tokenizers.Tokenizer) -> None:
    backend.add_special_tokens([AddedToken("<end>", rstrip=True)])


@pytest.mark.parametrize("spoil", [removing, collapsing, swallowing])
def test_where_text_may_be_left_out_there_is_no_bound(spoil: Any) -> None:
    backend = byte_level()
    spoil(backend)
    assert bound(backend) is None
