"""servekit: one configuration plans, checks and serves a large language model."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_LAZY = {
    "Config": ".config.schema",
    "load": ".config.compose",
    "plan": ".planner.plan",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
