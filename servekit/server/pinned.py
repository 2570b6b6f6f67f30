"""kv.pinned_prompts as the tokens that conversations with such a system prompt begin with."""

from collections.abc import Sequence

from servekit.errors import ConfigError, TemplateError
from servekit.server.service import Tokenizer

UNLIKE = ("a", "B")
"""What two users say: what both conversations begin with depends on neither."""


def pinned_tokens(prompts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Raises ConfigError for a prompt that the chat template does not take.

    A template may put the system prompt anywhere, into the first turn of the user for one, so what
    it begins with is found by rendering two conversations. Without a template it is the text.
    """
    if not tokenizer.has_chat_template:
        return [tokenizer.encode(prompt) for prompt in prompts]
    return [_common_start(prompt, tokenizer) for prompt in prompts]


def _common_start(prompt: str, tokenizer: Tokenizer) -> list[int]:
    rendered = []
    for said in UNLIKE:
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": said}]
        try:
            text = tokenizer.render_chat(messages)
        except TemplateError as error:
            raise ConfigError(
                f"kv.pinned_prompts has {prompt[:40]!r}, and the chat template takes no system "
                f"prompt: {error.message}; leave it out, or give another model.chat_template"
            ) from None
        rendered.append(tokenizer.encode(text, False))
    first, second = rendered
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return first[:index]
    return first[: len(second)]
