"""The tokenizer inside a GGUF file, rebuilt from its metadata.

Two kinds are known: `gpt2`, byte-level BPE with its list of merges and a named pre-tokenizer, and
`llama`, SentencePiece BPE, whose merges follow from the scores of its vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from servekit.errors import WeightsError
from servekit.model.gguf_metadata import read_metadata
from servekit.model.text_stream import WORD_START
from servekit.model.tokenizer_parts import (
    END_OF_TURN,
    TokenizerParts,
    end_of_turn_ids,
    wrap_sequence,
)

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffix: str) -> str:
    """Words cut where lower case turns to upper; `suffix` may follow either form."""
    first = r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{_UPPER}*{_LOWER}+{suffix}|{first}{_UPPER}+{_LOWER}*{suffix}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into words before BPE.

    `splits` are applied in turn, each to the pieces of the one before; `gpt2_words` cuts by GPT-2's
    own pattern at the end. `ignore_merges`: a word that is a token is that token.
    """

    splits: tuple[str, ...] = ()
    gpt2_words: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = PreTokenizer(gpt2_words=True)
_DIGITS = PreTokenizer(splits=(r"\p{N}",), gpt2_words=True)
_LLAMA3 = PreTokenizer(
    splits=(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n]*|{_SPACES}",),
    ignore_merges=True,
    adds_bos=True,
)
_QWEN2_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
_QWEN2 = PreTokenizer(splits=(_QWEN2_SPLIT,), nfc=True)
_TEKKEN = PreTokenizer(
    splits=(rf"{_cased('')}|\p{{N}}|{_SYMBOLS}[\r\n/]*|{_SPACES}",),
    ignore_merges=True,
    adds_bos=True,
)
_GPT4O = PreTokenizer(
    splits=(rf"{_cased(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n/]*|{_SPACES}",),
)
_DEEPSEEK3 = PreTokenizer(
    splits=(
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    ),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "command-r": _DIGITS,
    "refact": _DIGITS,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": PreTokenizer(splits=(_QWEN2_SPLIT,)),
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "deepseek-v3": _DEEPSEEK3,
}
"""By `tokenizer.ggml.pre`; the patterns are those of the models' own tokenizer.json."""


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Raises WeightsError for a file without a tokenizer, or with one of an unknown kind."""
    metadata = read_metadata(path)
    kind = metadata.get(PREFIX + "model")
    if kind not in _BUILDERS:
        raise WeightsError(
            f"{path}: tokenizer.ggml.model is {kind!r}; supported are {', '.join(_BUILDERS)}"
        )
    tokens = metadata.get(PREFIX + "tokens")
    if not tokens:
        raise WeightsError(f"{path} has no tokenizer.ggml.tokens; fetch a file that has")
    backend, adds_bos = _BUILDERS[kind](metadata, tokens, path)
    _add_special(backend, tokens, metadata.get(PREFIX + "token_type") or [])
    names = _names(metadata, tokens)
    bos, eos = names.get("bos_token"), names.get("eos_token")
    wrap_sequence(
        backend,
        bos if metadata.get(PREFIX + "add_bos_token", adds_bos) else None,
        eos if metadata.get(PREFIX + "add_eos_token", False) else None,
    )
    declared = [metadata.get(f"{PREFIX}{name}_token_id") for name in ("eos", "eot", "eom")]
    return TokenizerParts(
        backend=backend,
        bos_id=metadata.get(PREFIX + "bos_token_id") if bos else None,
        eos_ids=frozenset({i for i in declared if i is not None} | {*end_of_turn_ids(backend)}),
        special_tokens=names,
        templates=_templates(metadata),
    )


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], path: Path
) -> tuple[Tokenizer, bool]:
    name = metadata.get(PREFIX + "pre")
    if name not in PRE_TOKENIZERS:
        raise WeightsError(
            f"{path}: tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not known here; "
            f"supported are {', '.join(PRE_TOKENIZERS)}"
        )
    pre = PRE_TOKENIZERS[name]
    # A merge is "left right"; a left part never begins with a space, but may be one character.
    merges = [_pair(merge) for merge in metadata.get(PREFIX + "merges") or []]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.gpt2_words),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend, pre.adds_bos


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], path: Path
) -> tuple[Tokenizer, bool]:
    scores = metadata.get(PREFIX + "scores")
    if not scores or len(scores) != len(tokens):
        raise WeightsError(
            f"{path} has {len(scores or [])} tokenizer.ggml.scores for {len(tokens)} tokens; "
            "without them its merges cannot be told"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = metadata.get(PREFIX + "unknown_token_id")
    kinds = metadata.get(PREFIX + "token_type") or [1] * len(tokens)
    backend = Tokenizer(
        models.BPE(
            vocabulary,
            derive_merges(vocabulary, scores, kinds),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[Any] = [normalizers.Replace(" ", WORD_START)]
    ending: list[Any] = []
    if metadata.get(PREFIX + "add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(WORD_START))
        ending.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), *ending]
    )
    return backend, True


def derive_merges(
    vocabulary: Mapping[str, int], scores: list[float], kinds: list[int]
) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first.

    SentencePiece merges the pair whose union scores highest, the leftmost of equals. Of the ways
    to make the same token, the longest left part comes first: what merging from the left gives.
    """
    ways = []
    for token, token_id in vocabulary.items():
        if kinds[token_id] in (UNKNOWN, CONTROL):
            continue
        score = -scores[token_id]
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in vocabulary and token[cut:] in vocabulary:
                ways.append((score, token_id, -cut, token))
    ways.sort()
    return [(token[:-cut], token[-cut:]) for _, _, cut, token in ways]


def _add_special(backend: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tokens found whole in text: control tokens, and what the model's makers defined."""
    added = []
    for token, kind in zip(tokens, kinds, strict=False):
        special = kind in (CONTROL, UNKNOWN) or token in END_OF_TURN
        if token and (special or kind == USER_DEFINED):
            added.append(AddedToken(token, special=special, normalized=False))
    backend.add_tokens(added)


def _names(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    keys = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {name: metadata.get(f"{PREFIX}{key}_token_id") for key, name in keys.items()}
    return {
        f"{name}_token": tokens[token_id]
        for name, token_id in ids.items()
        if token_id is not None and token_id < len(tokens)
    }


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """`tokenizer.chat_template` is the default, `tokenizer.chat_template.NAME` a named one."""
    key = "tokenizer.chat_template"
    named = {
        name.removeprefix(key + "."): text
        for name, text in metadata.items()
        if name.startswith(key + ".")
    }
    return named | ({"default": metadata[key]} if metadata.get(key) else {})


_BUILDERS: dict[str, Callable[[Mapping[str, Any], list[str], Path], tuple[Tokenizer, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}
