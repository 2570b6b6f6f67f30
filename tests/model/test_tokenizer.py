"""Tokenizers of Hugging Face folders, beside transformers on the same folder."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from servekit.errors import ConfigError, RequestError, WeightsError
from servekit.model.tokenizer import load_tokenizer
from tests.model.tiny_tokenizers import byte_level, save_folder, sentencepiece, user_defined

NAMES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
TEXTS = ["", "hello world", " a  b\n\n12345", "café 🙂", "x<|im_end|>y", "<|im_start|>user\nhi"]


@pytest.fixture
def backend() -> Backend:
    return byte_level()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_ids_are_those_of_transformers(
    tmp_path: Path, backend: Backend, text: str, flags: dict[str, bool]
):
    backend.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", pair=None, special_tokens=[("<|endoftext|>", 0)]
    )
    folder = save_folder(tmp_path, backend, tokenizer_config=NAMES | flags)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for special in (True, False):
        assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special)


@pytest.mark.parametrize("text", TEXTS[:4])
@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_text_survives_the_round_trip(tmp_path: Path, text: str, space_prefix: bool):
    tokenizer = load_tokenizer(save_folder(tmp_path, sentencepiece(space_prefix)))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_limits_saved_with_a_tokenizer_do_not_cut_prompts(tmp_path: Path, backend: Backend):
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(save_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("a b c d e f")) == "a b c d e f"


def test_end_of_turn_is_what_any_file_says_and_what_is_known(tmp_path: Path, backend: Backend):
    folder = save_folder(
        tmp_path,
        backend,
        tokenizer_config=NAMES,
        generation_config={"eos_token_id": [7, 8]},
        config={"text_config": {"eos_token_id": 9}},
    )
    assert load_tokenizer(folder).eos_ids == {0, 2, 7, 8, 9}


def test_begin_of_sequence_is_none_where_there_is_none(tmp_path: Path, backend: Backend):
    assert load_tokenizer(save_folder(tmp_path / "a", backend)).bos_id is None
    named = save_folder(tmp_path / "b", backend, tokenizer_config=NAMES)
    assert load_tokenizer(named).bos_id == 1


def test_tokens_that_only_the_configuration_names_are_added(tmp_path: Path, backend: Backend):
    size = backend.get_vocab_size()
    added = {str(size): {"content": "<|new|>", "special": True}}
    folder = save_folder(tmp_path, backend, tokenizer_config={"added_tokens_decoder": added})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a<|new|>")[1:] == [size]
    assert tokenizer.token_bytes(size) == b""
    assert tokenizer.vocab_size == size + 1


def test_bytes_of_a_token_are_exact_and_none_for_a_special_one(tmp_path: Path, backend: Backend):
    tokenizer = load_tokenizer(save_folder(tmp_path, backend))
    emoji = tokenizer.encode("🙂")
    assert b"".join(map(tokenizer.token_bytes, emoji)) == "🙂".encode()
    assert tokenizer.token_bytes(2) == b""
    assert tokenizer.token_bytes(2, skip_special_tokens=False) == b"<|im_end|>"
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""


def test_an_id_beyond_the_vocabulary_cannot_be_decoded(tmp_path: Path, backend: Backend):
    tokenizer = load_tokenizer(save_folder(tmp_path, backend))
    size = tokenizer.vocab_size
    with pytest.raises(RequestError, match=f"id {size} is not in this vocabulary of {size} tokens"):
        tokenizer.decode([1, size])


def test_half_a_surrogate_pair_is_the_fault_of_the_request(tmp_path: Path, backend: Backend):
    tokenizer = load_tokenizer(save_folder(tmp_path, backend))
    with pytest.raises(RequestError, match="half of a surrogate pair at character 2"):
        tokenizer.encode("ab\ud83d")


def test_a_folder_without_a_tokenizer_says_what_it_has(tmp_path: Path):
    (tmp_path / "config.json").touch()
    with pytest.raises(WeightsError, match=r"has no tokenizer\.json \(there is config\.json\)"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(tmp_path)


def chat_folder(folder: Path, backend: Backend, **config: object) -> Path:
    return save_folder(folder, backend, tokenizer_config={**NAMES, **config})


HI = [{"role": "user", "content": "hi"}]


def test_a_template_of_its_own_file_wins(tmp_path: Path, backend: Backend):
    folder = chat_folder(tmp_path, backend, chat_template="old {{ bos_token }}")
    (folder / "chat_template.jinja").write_text("new {{ eos_token }}")
    assert load_tokenizer(folder).render_chat(HI) == "new <|im_end|>"


def test_the_tool_template_is_used_when_there_are_tools(tmp_path: Path, backend: Backend):
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].name }}"},
    ]
    tokenizer = load_tokenizer(chat_folder(tmp_path, backend, chat_template=named))
    assert tokenizer.render_chat(HI) == "plain"
    assert tokenizer.render_chat(HI, tools=[{"name": "clock"}]) == "clock"


def test_a_template_given_as_text_or_as_a_path_wins(tmp_path: Path, backend: Backend):
    folder = chat_folder(tmp_path / "m", backend, chat_template="theirs")
    (tmp_path / "mine.jinja").write_text("mine")
    assert load_tokenizer(folder, "{{ 'text' }}").render_chat(HI) == "text"
    assert load_tokenizer(folder, str(tmp_path / "mine.jinja")).render_chat(HI) == "mine"


def test_a_template_that_is_neither_text_nor_file_is_an_error(tmp_path: Path, backend: Backend):
    with pytest.raises(ConfigError, match=r"'gone\.jinja' is neither Jinja text .* nor a file"):
        load_tokenizer(chat_folder(tmp_path, backend), "gone.jinja")


def test_without_a_template_the_error_says_what_to_do(tmp_path: Path, backend: Backend):
    tokenizer = load_tokenizer(chat_folder(tmp_path, backend))
    with pytest.raises(RequestError, match=r"no chat template; use /v1/completions, or set") as e:
        tokenizer.render_chat(HI)
    assert (e.value.status, e.value.code, e.value.param) == (400, "template_error", "messages")
    assert not tokenizer.has_chat_template


def test_a_chat_has_the_begin_of_sequence_its_template_writes_and_no_other(
    tmp_path: Path, backend: Backend
):
    template = "{{ bos_token }}{{ messages[0].content }}"
    folder = chat_folder(tmp_path, backend, chat_template=template, add_bos_token=True)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(ours.render_chat(HI), add_special_tokens=False)
    assert ids.count(1) == 1
    assert ids == theirs.apply_chat_template(HI, return_dict=False)


def test_a_user_defined_token_is_text_that_is_not_skipped(tmp_path: Path, backend: Backend):
    backend.add_tokens([user_defined("<think>")])
    tokenizer = load_tokenizer(save_folder(tmp_path, backend))
    ids = tokenizer.encode("a<think>")
    assert len(ids) == 2
    assert tokenizer.decode(ids) == "a<think>"


def test_a_file_that_is_not_json_is_named(tmp_path: Path, backend: Backend):
    folder = save_folder(tmp_path, backend)
    (folder / "generation_config.json").write_text("{" + json.dumps("x"))
    with pytest.raises(WeightsError, match=r"generation_config\.json is not JSON"):
        load_tokenizer(folder)
