"""Evaluates the numbers of a formula as a reader would."""

import math
import re

FUNCTIONS = {"floor": math.floor, "ceil": math.ceil, "max": max, "min": min}


def evaluate(numbers: str) -> float:
    """`x` times, `^` to the power; commas group digits; words only say what is counted."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", numbers)
    text = re.sub(r"\bx\b", "*", text).replace("^", "**")
    text = re.sub(r"[A-Za-z_][\w/]*", lambda word: word[0] if word[0] in FUNCTIONS else "", text)
    return float(eval(text, {"__builtins__": {}}, FUNCTIONS))
