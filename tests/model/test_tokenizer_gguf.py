"""Tokenizers rebuilt from GGUF metadata, beside the ones they were written from."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from servekit.errors import WeightsError
from servekit.model.gguf_metadata import read_metadata
from servekit.model.gguf_tokenizer import PRE_TOKENIZERS, derive_merges, read_gguf_tokenizer
from servekit.model.tokenizer import Tokenizer, load_tokenizer
from tests.model.tiny_tokenizers import byte_level, save_gguf, sentencepiece, user_defined

DATA = Path(__file__).parent / "data"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


ORIGINALS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    "llama-bpe": split(LLAMA3),
    "qwen2": split(LLAMA3.replace("{1,3}", "")),
}


@pytest.mark.parametrize("pre", ORIGINALS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(text=st.text(alphabet=st.sampled_from("ab eé12٣你🙂'sT\n\r\t .,_"), max_size=30))
def test_byte_level_ids_are_those_of_the_tokenizer_in_the_file(
    pre: str, text: str, tmp_path_factory: pytest.TempPathFactory
):
    original = byte_level(ORIGINALS[pre], ignore_merges=pre == "llama-bpe")
    path = save_gguf(tmp_path_factory.mktemp("gguf") / "a.gguf", original, pre)
    rebuilt = read_gguf_tokenizer(path).backend
    assert rebuilt.encode(text, add_special_tokens=False).ids == original.encode(text).ids


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'm 123  x", ["I", "'m", "Ġ123", "Ġ", "Ġx"]),
        ("smollm", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("llama-bpe", "a1234'S\n\nb", ["a", "123", "4", "'S", "ĊĊ", "b"]),
        ("qwen2", "(ab)123", ["(ab", ")", "1", "2", "3"]),
        ("tekken", "camelCase HTTPServer 12", ["camel", "Case", "ĠHTTPServer", "Ġ", "1", "2"]),
        ("gpt-4o", "Don't 1234", ["Don't", "Ġ", "123", "4"]),
        ("deepseek-v3", "ab12345漢字!x", ["ab", "123", "45", "æ¼¢åŃĹ", "!x"]),
    ],
)
def test_words_are_cut_as_the_named_pre_tokenizer_cuts_them(
    pre: str, text: str, words: list[str], tmp_path: Path
):
    backend = read_gguf_tokenizer(save_gguf(tmp_path / "a.gguf", byte_level(), pre)).backend
    assert backend.pre_tokenizer is not None
    assert [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] == words


def test_every_pre_tokenizer_keeps_all_text(tmp_path: Path):
    text = "I'm a\r\n\n  Test: 12345 ½ 你好 مرحبا 🙂 \tx "
    for pre in PRE_TOKENIZERS:
        tokenizer = load_tokenizer(save_gguf(tmp_path / f"{pre}.gguf", byte_level(), pre))
        assert tokenizer.decode(tokenizer.encode(text)) == text, pre


@pytest.mark.parametrize("pre", ["martian", None])
def test_an_unknown_pre_tokenizer_is_named_beside_those_known(tmp_path: Path, pre: str | None):
    path = save_gguf(tmp_path / "a.gguf", byte_level(), pre)
    with pytest.raises(WeightsError, match=rf"pre is {pre!r}, .* supported are default, gpt-2"):
        load_tokenizer(path)


@pytest.mark.parametrize("space_prefix", [True, False])
@pytest.mark.parametrize("text", ["the fox", " the  dog", "quick,brown", "é", "你🙂", "a</s>b", ""])
def test_sentencepiece_ids_are_those_of_the_tokenizer_in_the_file(
    tmp_path: Path, space_prefix: bool, text: str
):
    original = sentencepiece(space_prefix)
    path = save_gguf(
        tmp_path / "a.gguf",
        original,
        ggml__add_space_prefix=space_prefix,
        ggml__unknown_token_id=0,
    )
    rebuilt = read_gguf_tokenizer(path).backend
    assert rebuilt.encode(text, add_special_tokens=False).ids == original.encode(text).ids


def test_merges_come_best_score_first_and_longest_left_first():
    vocabulary = {token: index for index, token in enumerate(["a", "aa", "aaa", "b", "ab", "<ab>"])}
    merges = derive_merges(vocabulary, [0, -1, -3, 0, -2, 0], [1, 1, 1, 1, 1, 3])
    assert merges == [("a", "a"), ("a", "b"), ("aa", "a"), ("a", "aa")]


@pytest.mark.parametrize(
    ("metadata", "first", "last"),
    [
        ({}, [], []),
        ({"ggml__add_bos_token": True}, [1], []),
        ({"ggml__add_eos_token": True}, [], [2]),
    ],
)
def test_begin_and_end_of_sequence_are_added_as_the_file_says(
    tmp_path: Path, metadata: dict[str, bool], first: list[int], last: list[int]
):
    ids = {"ggml__bos_token_id": 1, "ggml__eos_token_id": 2}
    path = save_gguf(tmp_path / "a.gguf", byte_level(), "gpt-2", **ids, **metadata)
    tokenizer = load_tokenizer(path)
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == first + plain + last
    assert tokenizer.bos_id == 1


def test_a_llama3_file_that_says_nothing_begins_with_begin_of_sequence(tmp_path: Path):
    path = save_gguf(tmp_path / "a.gguf", byte_level(), "llama-bpe", ggml__bos_token_id=1)
    assert load_tokenizer(path).encode("")[0] == 1


def test_end_of_turn_is_what_the_file_says_and_what_is_known(tmp_path: Path):
    path = save_gguf(
        tmp_path / "a.gguf", byte_level(), "gpt-2", ggml__eos_token_id=9, ggml__eot_token_id=10
    )
    assert load_tokenizer(path).eos_ids == {0, 2, 9, 10}


def test_user_defined_tokens_are_found_in_text_and_are_not_special(tmp_path: Path):
    original = sentencepiece(space_prefix=False)
    original.add_tokens([user_defined("  ")])
    state = json.loads(original.to_str())
    state["model"]["vocab"]["  "] = len(state["model"]["vocab"])
    original = type(original).from_str(json.dumps(state))
    path = save_gguf(tmp_path / "a.gguf", original, ggml__add_space_prefix=False)
    tokenizer = load_tokenizer(path)
    (token_id,) = tokenizer.encode("  ", add_special_tokens=False)
    assert tokenizer.decode([token_id]) == "  "


def test_the_chat_template_of_the_file_is_used(tmp_path: Path):
    path = save_gguf(
        tmp_path / "a.gguf",
        byte_level(),
        "gpt-2",
        ggml__bos_token_id=1,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
        chat_template__tool_use="tools",
    )
    tokenizer = load_tokenizer(path)
    assert tokenizer.render_chat([{"content": "hi"}]) == "<|im_start|>hi"
    assert tokenizer.render_chat([{"content": "hi"}], tools=[{}]) == "tools"


def test_a_file_that_ends_in_its_header_is_an_error(tmp_path: Path):
    path = save_gguf(tmp_path / "a.gguf", byte_level(), "gpt-2")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(WeightsError, match="is not a whole GGUF file"):
        load_tokenizer(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(40), b"GGUF\x01\0\0\0" + bytes(40)])
def test_what_is_not_gguf_is_an_error(tmp_path: Path, content: bytes):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(WeightsError, match="is not a whole GGUF file"):
        read_metadata(tmp_path / "a.gguf")


def check_ids(tokenizer: Tokenizer, name: str) -> None:
    golden = json.loads((DATA / f"token_ids_{name}.json").read_text(encoding="utf-8"))
    assert len(golden["cases"]) > 400
    for case in golden["cases"]:
        ids = tokenizer.encode(case["text"], add_special_tokens=False)
        assert ids == case["ids"], (case["text"], golden["producer"])


@pytest.mark.weights
def test_ids_of_smollm2_are_those_of_llama_cpp(smollm2_path: Path):
    check_ids(load_tokenizer(smollm2_path), "smollm2")


@pytest.mark.weights
def test_ids_of_gemma_are_those_of_llama_cpp(gemma_path: Path):
    check_ids(load_tokenizer(gemma_path), "gemma")


@pytest.mark.weights
@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma_path"])
def test_text_survives_the_round_trip_through_a_real_vocabulary(
    fixture: str, request: pytest.FixtureRequest
):
    tokenizer = load_tokenizer(request.getfixturevalue(fixture))
    for case in json.loads((DATA / "token_ids_gemma.json").read_text(encoding="utf-8"))["cases"]:
        text = case["text"]
        if "▁" not in text:  # SentencePiece reads it as a space
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.weights
def test_real_files_say_how_turns_begin_and_end(smollm2_path: Path, gemma_path: Path):
    smollm2, gemma = load_tokenizer(smollm2_path), load_tokenizer(gemma_path)
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_ids) == (49152, 1, {0, 2})
    assert (gemma.vocab_size, gemma.bos_id, gemma.eos_ids) == (262144, 2, {1, 106})
    assert gemma.encode("a")[0] == 2
    chat = smollm2.render_chat([{"role": "user", "content": "hi"}])
    assert smollm2.encode(chat, False)[-4:] == smollm2.encode("<|im_start|>assistant\n")
