"""The memory of a device as a strip of characters, read with colours or without."""

from rich.text import Text

from servekit.spec.memory import Ledger

STYLES = {
    "weights": "blue",
    "activations": "magenta",
    "workspace": "red",
    "graphs": "cyan",
    "runtime": "yellow",
    "kv": "green",
    "unused": "bright_black",
}
FILLS = {
    "weights": "█",
    "activations": "▓",
    "workspace": "▒",
    "graphs": "░",
    "runtime": "▄",
    "kv": "▚",
    "unused": "·",
}
"""A glyph each, so that the bar reads without colours."""

LONGEST_BAR = 100


def memory_bar(book: Ledger, width: int) -> Text:
    """`width` characters for the device; where more is asked for, a stroke shows where it ends."""
    whole = max(book.total_bytes, book.used_bytes)
    over = book.unused_bytes < 0
    bar = Text(no_wrap=True, overflow="crop")
    room = min(width, LONGEST_BAR) - over
    for name, characters in cells(sizes(book), whole, room).items():
        bar.append(FILLS[name] * characters, style=STYLES[name])
    if over:
        edge = min(room - 1, int(room * book.total_bytes / whole))
        return bar[:edge].append("┃", style="bold red").append_text(bar[edge:])
    return bar


def sizes(book: Ledger) -> dict[str, int]:
    """Bytes of what there is anything of, in the order of the bar."""
    parts = {name: part.bytes for name, part in book.components.items()}
    parts["unused"] = book.unused_bytes
    return {name: size for name, size in parts.items() if size > 0}


def cells(parts: dict[str, int], whole: int, room: int) -> dict[str, int]:
    """Characters of each, at least one, `room` together; the largest gives or takes the rest."""
    found = {name: max(1, round(room * size / whole)) for name, size in parts.items()}
    if found:
        largest = max(found, key=found.__getitem__)
        found[largest] += room - sum(found.values())
    return found
