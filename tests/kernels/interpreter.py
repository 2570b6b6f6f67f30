"""Triton's interpreter, made right: kernels run on the CPU as a GPU would compute them.

As it comes it takes bfloat16 for integers of 16 bits, truncates where a GPU rounds, and reads
whatever an address names. `install` replaces the parts that do so, once a process:

* bfloat16 and fp8 values are widened to float32, computed, and rounded to nearest even (fp8 e4m3
  and e5m2 saturate, as PTX `cvt.satfinite` does);
* a product of matrices is one float32 product (int8: int32);
* every address of a load, store or atomic must lie in the memory of a tensor argument, else
  IndexError with the program and the number of its lanes that do not;
* within `races()`, two programs of a launch that store to one address raise RuntimeError;
* `range` takes its bounds from tensors with NumPy 2.4 and later.

It models no order of memory, no barrier and no layout: two programs never run at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as stock

Handle = stock.TensorHandle
Builder = stock.InterpreterBuilder

WIDENED = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
BITWISE = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift}


class Watch:
    """What the launch under way may touch, and who has stored where."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.races = False
        self.stored: list[tuple[tuple[int, int, int], np.ndarray]] = []

    def begin(self) -> None:
        self.spans, self.stored = [], []

    def may_touch(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.spans.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))

    def check(self, what: str, pointers: Any, mask: Any, program: tuple[int, int, int]) -> None:
        shape = np.broadcast_shapes(pointers.data.shape, mask.data.shape)
        addresses = np.broadcast_to(pointers.data, shape)[np.broadcast_to(mask.data, shape)]
        if not addresses.size:
            return
        first = addresses.astype(np.int64)
        last = first + max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(first.shape, bool)
        for low, high in self.spans:
            inside |= (first >= low) & (last <= high)
        if not inside.all():
            outside = int((~inside).sum())
            raise IndexError(
                f"{what} out of bounds in program {program}: {outside} of {inside.size} lanes are "
                "in no tensor that the kernel was given"
            )
        if self.races and what == "store":
            self.stored.append((program, np.unique(first)))

    def end(self) -> None:
        """Raises RuntimeError if two programs stored to one address."""
        if not self.stored:
            return
        owners: dict[int, tuple[int, int, int]] = {}
        for program, addresses in self.stored:
            for address in addresses.tolist():
                other = owners.setdefault(address, program)
                if other != program:
                    raise RuntimeError(
                        f"a race: programs {other} and {program} store to one address"
                    )


WATCH = Watch()


@contextmanager
def races() -> Iterator[None]:
    """Stores are compared between the programs of each launch."""
    WATCH.races = True
    try:
        yield
    finally:
        WATCH.races = False


def widen(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Bits of a narrow type as float32; other data as it is."""
    if dtype not in WIDENED:
        return data
    bits = torch.from_numpy(np.ascontiguousarray(data))
    return bits.view(WIDENED[dtype]).float().numpy()


def narrow(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Bits of a narrow type, rounded to nearest even; fp8 saturates, and NaN stays NaN."""
    values = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
    if dtype in LARGEST:
        values = values.clamp(-LARGEST[dtype], LARGEST[dtype])
    bits = torch.uint16 if dtype == tl.bfloat16 else torch.uint8
    return values.to(WIDENED[dtype]).view(bits).numpy()


def scalar(dtype: Any) -> Any:
    return getattr(dtype, "scalar", dtype)


def widened(handle: Any) -> np.ndarray:
    return widen(handle.data, scalar(handle.dtype))


def handle_of(values: np.ndarray, dtype: Any) -> Any:
    """Float32 results of arithmetic on `dtype`, in it; comparisons stay booleans."""
    if values.dtype == np.bool_:
        return Handle(values, tl.int1)
    return Handle(narrow(values, dtype), dtype)


def cast(source: Any, to: Any) -> Any:
    values, dtype = widened(source), scalar(to)
    if dtype in WIDENED:
        return Handle(narrow(values, dtype), dtype)
    return Handle(values.astype(stock._get_np_dtype(dtype)), dtype)


def _repair_arithmetic() -> None:
    old_binary, old_unary, old_ternary = Builder.binary_op, Builder.unary_op, Builder.ternary_op

    def binary(self: Any, left: Any, right: Any, op: Callable[..., np.ndarray]) -> Any:
        dtype = scalar(left.dtype)
        if dtype not in WIDENED or op in BITWISE:
            return old_binary(self, left, right, op)
        return handle_of(op(widened(left), widened(right)), dtype)

    def unary(self: Any, value: Any, op: Callable[..., np.ndarray]) -> Any:
        dtype = scalar(value.dtype)
        if dtype not in WIDENED:
            return old_unary(self, value, op)
        return handle_of(op(widened(value)), dtype)

    def ternary(self: Any, a: Any, b: Any, c: Any, op: Callable[..., np.ndarray]) -> Any:
        dtype = scalar(c.dtype)
        if dtype not in WIDENED or op is np.where:  # a choice moves bits
            return old_ternary(self, a, b, c, op)
        return handle_of(op(widened(a), widened(b), widened(c)), dtype)

    Builder.binary_op, Builder.unary_op, Builder.ternary_op = binary, unary, ternary


def _repair_the_rest() -> None:
    """What the interpreter does not compute by one of the three."""
    old_abs, old_rsqrt = Builder.create_fabs, Builder.create_rsqrt

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        dtype = scalar(z.dtype)
        values = widened(x) * widened(y) + widened(z)
        return handle_of(values, dtype) if dtype in WIDENED else Handle(values, dtype)

    def magnitude(self: Any, value: Any) -> Any:
        if scalar(value.dtype) in WIDENED:
            return self.unary_op(value, np.abs)
        return old_abs(self, value)

    def rsqrt(self: Any, value: Any) -> Any:
        if scalar(value.dtype) in WIDENED:
            return self.unary_op(value, lambda x: 1 / np.sqrt(x))
        return old_rsqrt(self, value)

    def dot(self: Any, a: Any, b: Any, start: Any, *_: Any) -> Any:
        x, y, out = widened(a), widened(b), start.data.dtype
        if np.issubdtype(x.dtype, np.integer):
            product = np.matmul(x.astype(out), y.astype(out))
        else:  # products of narrow floats are exact in float32
            product = np.matmul(x.astype(np.float32), y.astype(np.float32))
        return Handle((product + start.data).astype(out), scalar(start.dtype))

    Builder.create_fma, Builder.create_dot = fused, dot
    Builder.create_fabs, Builder.create_rsqrt = magnitude, rsqrt


def _repair_casts() -> None:
    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        return cast(source, to)

    def between_floats(self: Any, source: Any, to: Any, rounding: Any) -> Any:
        return cast(source, to)

    def constant(self: Any, value: float) -> Any:
        return Handle(narrow(np.array([value]), tl.bfloat16), tl.bfloat16)

    Builder.cast_impl, Builder.create_fp_to_fp = cast_impl, between_floats
    Builder.get_bf16 = constant


def _repair_reductions() -> None:
    """Of narrow floats: in float32, then rounded; of an index beside a value the index as it is."""
    for ops in (stock.ReduceOps, stock.ScanOps):

        def apply(
            self: Any, inputs: tuple[Any, ...], old: Callable[..., Any] = ops.apply_impl
        ) -> Any:
            dtypes = [scalar(one.dtype) for one in inputs]
            if not any(dtype in WIDENED for dtype in dtypes):
                return old(self, inputs)
            lifted = tuple(
                self.to_tensor(widened(one.handle), tl.float32) if dtype in WIDENED else one
                for one, dtype in zip(inputs, dtypes, strict=True)
            )
            results = old(self, lifted)
            several = isinstance(results, tuple | list)
            first = results[0] if several else results
            bits = narrow(first.handle.data, dtypes[0])
            lowered = self.to_tensor(bits if first.type.is_block() else bits.item(), dtypes[0])
            return (lowered, *results[1:]) if several else lowered

        ops.apply_impl = apply


def _watch_memory() -> None:
    old_load, old_store = Builder.create_masked_load, Builder.create_masked_store
    old_rmw, old_cas, old_convert = (
        Builder.create_atomic_rmw,
        Builder.create_atomic_cas,
        stock._implicit_cvt,
    )

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        WATCH.check("load", pointers, mask, self.grid_idx)
        return old_load(self, pointers, mask, *rest)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        WATCH.check("store", pointers, mask, self.grid_idx)
        return old_store(self, pointers, value, mask, *rest)

    def rmw(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        WATCH.check("atomic", pointers, mask, self.grid_idx)
        return old_rmw(self, op, pointers, value, mask, *rest)

    def cas(self: Any, pointers: Any, *rest: Any) -> Any:
        WATCH.check("atomic", pointers, Handle(np.ones((1,), bool), tl.int1), self.grid_idx)
        return old_cas(self, pointers, *rest)

    def convert(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            WATCH.may_touch(argument)
        return old_convert(argument)

    Builder.create_masked_load, Builder.create_masked_store = load, store
    Builder.create_atomic_rmw, Builder.create_atomic_cas = rmw, cas
    stock._implicit_cvt = convert


def _repair_calls() -> None:
    """The language is patched once for each module of a launch, not at each call of a helper."""
    patched: set[frozenset[int]] = set()
    known: dict[Any, frozenset[int]] = {}
    old_launch, old_patch, old_tensor = (
        stock.GridExecutor.__call__,
        stock._patch_lang,
        stock._patch_lang_tensor,
    )

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        WATCH.begin()
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                old_launch(self, *args, **kwargs)
        except stock.InterpreterError as fault:
            raise (fault.__cause__ or fault) from None
        WATCH.end()

    def helper(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen = known.get(self.fn)
        if seen is None:
            seen = known[self.fn] = frozenset(
                id(value)
                for value in self.fn.__globals__.values()
                if value is tl or value is tl.core
            )
        if seen not in patched:
            patched.add(seen)
            old_patch(self.fn)
        return self.rewrite()(*args, **kwargs)

    def tensor(cls: Any, scope: Any) -> None:
        old_tensor(cls, scope)
        scope.set_attr(
            cls, "__index__", lambda self: int(np.asarray(self.handle.data).reshape(-1)[0])
        )

    stock.GridExecutor.__call__ = launch
    stock.InterpretedFunction.__call__ = helper
    stock._patch_lang_tensor = tensor


def install() -> None:
    """Once a process, before the first launch."""
    if getattr(Builder, "repaired", False):
        return
    Builder.repaired = True
    _repair_arithmetic()
    _repair_the_rest()
    _repair_casts()
    _repair_reductions()
    _watch_memory()
    _repair_calls()
