"""Triton, where it is installed.

It exists for Linux only. Elsewhere the torch references still run, so that importing a kernel must
not fail: only a launch does, and says what is missing.
"""

from typing import Any

from servekit.errors import NotBuilt

try:
    import triton
    import triton.language as tl

    jit: Any = triton.jit
    HAS_TRITON = True
except ImportError:
    HAS_TRITON = False

    class _Absent:
        """Any name of a module that is not there."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __call__(self, *_: Any, **__: Any) -> Any:
            raise NotBuilt(
                "a Triton kernel was asked for and triton is not installed; install it "
                "(pip install triton, Linux only) or use engine.kernels=torch"
            )

        __getitem__ = __call__

    triton = tl = _Absent()

    def jit(function: Any = None, **_: Any) -> Any:
        """As a decorator with options or without."""
        return _Absent() if callable(function) else jit_of

    def jit_of(function: Any) -> Any:
        del function
        return _Absent()


__all__ = ["HAS_TRITON", "jit", "tl", "triton"]
