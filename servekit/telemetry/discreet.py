"""The log of a process, in which no prompt stands unless that is asked for.

What an unexpected exception says may quote what it failed on. So the log has its type and where it
was raised, and the message only with telemetry.log_prompts.
"""

import asyncio
import logging
import traceback
from types import TracebackType
from typing import Any

log = logging.getLogger(__name__)

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Discreet(logging.Formatter):
    """Leaves out what exceptions say."""

    def formatException(self, ei: ExcInfo) -> str:
        return "" if ei[1] is None else raised(ei[1])


def raised(error: BaseException) -> str:
    """Where an exception was raised and of which types it and its causes are."""
    parts = []
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        parts.append(f"{where}\n{type(error).__name__} (telemetry.log_prompts shows what it says)")
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        error = behind or error
    return "\nafter\n".join(parts)


def log_to_stderr(line: str, *, log_prompts: bool) -> None:
    """From level INFO, each record as the format `line` says."""
    handler = logging.StreamHandler()
    handler.setFormatter((logging.Formatter if log_prompts else Discreet)(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of an event loop: its own words would quote the exception, or what a callback was given."""
    what, _, _ = context["message"].partition("(")
    log.error("%s", what, exc_info=context.get("exception"))
