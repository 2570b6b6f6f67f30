"""One value of a trace, checked; a ValueError says what it should have been."""

import math
from datetime import UTC, datetime

from servekit.workload.arrival import SloClass
from servekit.workload.trace import MOST_SECONDS, MOST_TOKENS


def tokens(value: object, name: str) -> int:
    """A count of tokens, of a number or of text that is one."""
    if isinstance(value, str) and len(value) < 10 and value.isdecimal():
        return int(value)  # nearly all of a long trace; the rest is for what is unusual
    count = _number(value, name)
    if not (0 <= count <= MOST_TOKENS and count == int(count)):
        raise ValueError(f"{name} is {_shown(value)}, not a whole number from 0 to {MOST_TOKENS}")
    return int(count)


def seconds(value: object, name: str, unit: float = 1.0) -> float:
    """A time, of a number of `unit` seconds or of text that is one."""
    time = _number(value, name) * unit
    if not abs(time) <= MOST_SECONDS:
        raise ValueError(f"{name} is {_shown(value)}, which is no time")
    return time


def date(value: str, name: str) -> float:
    """Seconds since 1970, of a date such as 2023-11-16 18:15:46.680590; without a zone: UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f"{name} is {_shown(value)}, not a date and time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def priority(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{name} is {_shown(value)}, not a whole number")
    return value


def slo_class(value: object, name: str) -> SloClass:
    if value == "interactive":
        return "interactive"
    if value == "batch":
        return "batch"
    raise ValueError(f"{name} is {_shown(value)}, not interactive or batch")


def key(value: object, name: str) -> str | int:
    """A name of something: text or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name} is {_shown(value)}, not text or a whole number")
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{name} is {_shown(value)}, which has half of a surrogate pair")
    return value


def keys(value: object, name: str) -> tuple[str | int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_shown(value)}, not a list")
    return tuple(key(entry, f"an entry of {name}") for entry in value)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} is {_shown(value)}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is {_shown(value)}, which is too large") from None
    except ValueError:
        raise ValueError(f"{name} is {_shown(value)}, not a number") from None
    if math.isinf(number) and any(letter.isdigit() for letter in str(value)):
        raise ValueError(f"{name} is {_shown(value)}, which is too large")
    if not math.isfinite(number):
        raise ValueError(f"{name} is {_shown(value)}, not a number")
    return number


def _shown(value: object) -> str:
    """As it may stand in a message: short, and with no character that acts on a terminal."""
    try:
        text = ascii(value)
    except ValueError:  # a number of more digits than Python writes
        return "a very long number"
    return text if len(text) <= 40 else f"{text[:37]}..."
