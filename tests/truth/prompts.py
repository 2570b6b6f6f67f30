"""Twenty-four prompts of 1 to 1,500 tokens: Latin, Chinese, emoji, code; raw and chat-templated."""

from servekit.model.tokenizer import Tokenizer

LENGTHS = (1, 2, 3, 5, 8, 13, 31, 32, 33, 47, 64, 65)
LONG_LENGTHS = (100, 127, 128, 129, 200, 255, 256, 300, 512, 700, 1000, 1500)

LATIN = (
    "The lighthouse keeper counted {n} ships before dawn, and wrote each name in a ledger. "
    "À Genève, l'été dernier, {n} élèves ont préparé un gâteau für Größe und Übermut. "
)
CHINESE = "第{n}章:清晨的市场里,老人把茶叶一包一包地摆好,孩子们在河边放风筝。"
EMOJI = "Day {n}: 🌧️ then ☀️, we hiked 🥾 up the ridge, cooked 🍜 and slept under ✨🌌. 👩‍🔬👍🏽 "
CODE = (
    "def step_{n}(state: dict[str, int]) -> int:\n"
    "    total = sum(v * {n} for v in state.values() if v % 2 == 0)\n"
    "    return total if total > {n} else -1\n\n"
)
KINDS = (LATIN, CHINESE, EMOJI, CODE)


def text(kind: str, tokens: int) -> str:
    """Enough numbered, never repeating text of a kind for that many tokens."""
    return "".join(kind.format(n=number) for number in range(7, 7 + tokens // 8 + 2))


def raw(tokenizer: Tokenizer, kind: str, tokens: int) -> list[int]:
    return tokenizer.encode(text(kind, tokens))[:tokens]


def chat(tokenizer: Tokenizer, kind: str, tokens: int) -> list[int]:
    """About `tokens` tokens, the frame of the template included and whole."""
    frame = len(asked(tokenizer, ""))
    ids = tokenizer.encode(text(kind, tokens), add_special_tokens=False)
    content = tokenizer.decode(ids[: max(1, tokens - frame)])
    return asked(tokenizer, content)


def asked(tokenizer: Tokenizer, content: str) -> list[int]:
    prompt = tokenizer.render_chat([{"role": "user", "content": content}])
    return tokenizer.encode(prompt, add_special_tokens=False)


def all_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Every kind at six lengths; above 64 tokens half of them in the chat template."""
    prompts = []
    for index, tokens in enumerate(LENGTHS + LONG_LENGTHS):
        make = chat if tokens > 64 and (index // len(KINDS)) % 2 else raw
        prompts.append(make(tokenizer, KINDS[index % len(KINDS)], tokens))
    return prompts
