"""Finds launch parameters on the GPU at hand and writes them where launchers read them."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import yaml

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.shapes import Contexts, narrow_weight
from benchmarks.gpu.speed import NARROW
from servekit.kernels.matmul import matmul_triton
from servekit.kernels.moe import moe_triton
from servekit.kernels.moe_routing import route_triton
from servekit.kernels.quantised_matmul import quantised_matmul_triton
from servekit.kernels.target import target
from servekit.kernels.tuned import FOLDER, MAY_BE, Parameters, objections, table, trying, watching

WORTH = 0.97
"""Of the default's time; what is not as fast as that is noise, and the default stays."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""Its linear layers, [N, K]: query, key and value; output; gate and up; down."""

Call = Callable[[], object]
Times = Callable[[Call], float | None]
"""Seconds of a call; None where it cannot be run."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """A launch of `op`; which key it asks for is seen when it is called."""

    op: str
    call: Call


@dataclass(frozen=True, slots=True)
class Choice:
    op: str
    key: str
    parameters: Parameters
    seconds: float
    default_seconds: float


def asked_for(one: Tunable) -> tuple[str, Parameters]:
    """The key that a launch looks up, and the default it has beside it."""
    with watching() as asked:
        one.call()
    return next((key, default) for op, key, default in asked if op == one.op)


def tune(one: Tunable, times: Times, fixed: Sequence[str] = ()) -> Choice | None:
    """One parameter after another, from the default, each at its fastest, until a round changes
    nothing. None where nothing is faster than the default by more than noise. `fixed` stay.
    """
    key, default = asked_for(one)
    before = times(one.call)
    if before is None:
        return None
    best, fastest, changed = default, before, True
    while changed:
        changed = False
        for name, values in MAY_BE[one.op].items():
            for value in values if name not in fixed else ():
                tried = {**best, name: value}
                if tried == best:
                    continue
                with trying(one.op, key, tried):
                    taken = times(one.call)
                if taken is not None and taken < fastest * WORTH:
                    best, fastest, changed = tried, taken, True
    found = {name: best[name] for name in MAY_BE[one.op]}
    return None if best == default else Choice(one.op, key, found, fastest, before)


def on_gpu(bench: Bench) -> Times:
    """Compiles too; what takes more registers or memory than there is cannot be run."""

    def times(call: Call) -> float | None:
        try:
            return bench.seconds(call, runs=8)[0]
        except Exception:  # whatever the compiler or the driver raises of such parameters
            torch.cuda.synchronize()
            return None

    return times


def tunables(bench: Bench) -> Iterator[Tunable]:
    """At the shapes of Llama 3.1 8B, and experts at those of Qwen3 30B A3B."""
    for stored in (torch.bfloat16, torch.float8_e4m3fn, torch.int8):
        sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128}
        decodes = Contexts(bench, [(1, 4096)] * 32, **sizes, stored=stored)
        yield Tunable("paged_decode", decodes.ours())
        prompt = Contexts(bench, [(4096, 8192)], **sizes, stored=stored)
        yield Tunable("paged_prefill", prompt.ours())
    for n, k in LLAMA_8B:
        weights = [narrow_weight(bench, kind, n, k) for kind in NARROW]
        dense = bench.randn(n, k)
        for m in ROWS:
            x = bench.randn(m, k)
            yield Tunable("matmul", partial(matmul_triton, x, dense))
            for weight in weights:
                call = partial(quantised_matmul_triton, x, weight)
                yield Tunable("quantised_matmul", call)
    gate_up, down = bench.randn(128, 1536, 2048), bench.randn(128, 2048, 768)
    for tokens in (1, 16, 128, 1024, 8192):
        x = bench.randn(tokens, 2048)
        routes = route_triton(bench.randn(tokens, 128), 8, "softmax", True)
        yield Tunable("moe", partial(moe_triton, x, gate_up, down, routes, "silu"))


def tuned_rows(some: Iterable[Tunable], times: Times, op: str | None = None) -> Iterator[Choice]:
    """Of one operation or all. BK of `matmul` stays: it is one for all numbers of rows."""
    for one in some:
        if op in (None, one.op):
            choice = tune(one, times, fixed=("BK",) if one.op == "matmul" else ())
            if choice is not None:
                yield choice


def write(path: Path, choice: Choice, about: str) -> None:
    """Beside what was tuned of other operations and keys; at once, so that a stop loses nothing."""
    old = yaml.safe_load(path.read_text()) if path.is_file() else None
    rows: dict[str, dict[str, Parameters]] = {op: dict(own) for op, own in (old or {}).items()}
    rows.setdefault(choice.op, {})[choice.key] = choice.parameters
    if problems := list(objections(rows)):
        raise ValueError("\n".join(problems))
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# {about}\n" + yaml.safe_dump(rows, sort_keys=True))
    table.cache_clear()


def main(op: str | None) -> int:
    if op is not None and op not in MAY_BE:
        print(f"--tune --op {op}: there are {', '.join(MAY_BE)}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("--tune measures on a GPU, and torch sees none here", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    bench = Bench(dry=False, deadline=float("inf"))
    path = FOLDER / f"{target().gpu}.yaml"
    name = torch.cuda.get_device_name(0)
    about = f"python -m benchmarks.kernels --tune; {name}, torch {torch.__version__}"
    for choice in tuned_rows(tunables(bench), on_gpu(bench), op):
        write(path, choice, about)
        gain = choice.default_seconds / choice.seconds
        print(
            f"{choice.op}, {choice.key}: {gain:.2f} times as fast: {choice.parameters}", flush=True
        )
    return 0
