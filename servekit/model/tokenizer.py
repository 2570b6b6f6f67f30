"""Text to token ids and back, and messages to a prompt.

Runs in the server process, so it needs neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servekit.errors import ConfigError, RequestError, TemplateError
from servekit.model.chat import ChatTemplate, Message
from servekit.model.gguf_tokenizer import read_gguf_tokenizer
from servekit.model.hf_tokenizer import read_hf_tokenizer
from servekit.model.text_bound import longest_token
from servekit.model.text_stream import TextStream, token_table
from servekit.model.tokenizer_parts import TokenizerParts


def load_tokenizer(path: Path, chat_template: str | None = None) -> "Tokenizer":
    """From a .gguf file or a Hugging Face folder.

    `chat_template` is Jinja text or a path to it, and takes the place of what comes with the
    weights. Raises WeightsError for a tokenizer that is missing or unknown, ConfigError for a
    template that is neither text nor file.
    """
    parts = read_hf_tokenizer(path) if path.is_dir() else read_gguf_tokenizer(path)
    templates = parts.templates
    if chat_template is not None:
        templates = {"default": _template_text(chat_template)}
    return Tokenizer(parts, templates)


def _template_text(text_or_path: str) -> str:
    if "{{" in text_or_path or "{%" in text_or_path:
        return text_or_path
    path = Path(text_or_path).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"model.chat_template: {text_or_path!r} is neither Jinja text (it has no {{{{ or "
            f"{{%) nor a file ({path.resolve()} does not exist)",
            param="model.chat_template",
        )
    return path.read_text(encoding="utf-8")


class Tokenizer:
    """One model's tokenizer; all methods are thread-safe.

    `vocab_size` is the highest id plus one; the embedding may be padded beyond it. `eos_ids` are
    all ids that end a turn. `longest_token` is how many characters one can stand for at most, None
    if that has no bound.
    """

    def __init__(self, parts: TokenizerParts, templates: Mapping[str, str]) -> None:
        self._backend = parts.backend
        self._table = token_table(parts.backend)
        self._templates = {
            name: ChatTemplate(text, parts.special_tokens) for name, text in templates.items()
        }
        self.vocab_size = len(self._table.pieces)
        self.longest_token = longest_token(parts.backend, self._table.pieces)
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    @property
    def template_names(self) -> frozenset[str]:
        """Variables, and keys of messages, that the chat templates look at."""
        return frozenset[str]().union(*(one.names for one in self._templates.values()))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Special tokens written out in `text` become their ids.

        `add_special_tokens` adds begin (and end) of sequence where this model wants them. Raises
        RequestError for text that is not Unicode.
        """
        try:
            # `encode` would hold the interpreter's lock; `encode_batch` lets it go
            (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        except TypeError as error:  # the library's word for a string that has no UTF-8
            halves = [at for at, sign in enumerate(text) if "\ud800" <= sign <= "\udfff"]
            raise RequestError(
                f"the text has half of a surrogate pair at character {halves[0]}; "
                "send whole characters",
                param="prompt",
            ) from error
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Raises RequestError for an id that the vocabulary does not have."""
        unknown = [token_id for token_id in ids if not 0 <= token_id < self.vocab_size]
        if unknown:
            raise RequestError(
                f"token id {unknown[0]} is not in this vocabulary of {self.vocab_size} tokens",
                param="tokens",
            )
        stream = self.text_stream(skip_special_tokens)
        return stream.push(ids) + stream.finish()

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        """What this id adds to the text; b"" for a special token that is skipped."""
        return self._table.piece(token_id, skip_special_tokens)

    def text_stream(
        self, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> TextStream:
        """A detokeniser for the ids of one output.

        With `continues_text` the first word keeps the space that joins it to a prompt; without,
        the whole is exactly `decode` of the same ids. They differ only for tokenizers that put a
        space before every text (Llama 2, Mistral 7B).
        """
        return TextStream(
            self._table, skip_special_tokens=skip_special_tokens, continues_text=continues_text
        )

    def render_chat(
        self, /, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt as text, with the begin of sequence that its template writes: `encode` has to
        add none. Raises TemplateError if the template refuses, or there is none.
        """
        if not self._templates:
            raise TemplateError(
                "this model has no chat template; use /v1/completions, or set model.chat_template",
                param="messages",
            )
        tool_use = "tool_use" in self._templates and variables.get("tools")
        name = "tool_use" if tool_use or "default" not in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()))
        return template.render(messages, add_generation_prompt, **variables)
