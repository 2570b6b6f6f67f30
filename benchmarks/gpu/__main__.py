"""All that needs a GPU; `benchmarks/gpu/run.sh` is how it is called.

Exit 1 where something computed is wrong; a missed target is told and is no fault.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.correctness import correctness
from benchmarks.gpu.lines import Line, as_json, markdown
from benchmarks.gpu.model import decode_step, end_to_end, missing
from benchmarks.gpu.speed import copy, decode_attention, elementwise, matmuls, prefill_attention

RESULTS = Path(__file__).resolve().parents[1] / "results"
Section = Callable[[Bench], Iterator[Line]]


def sections(hardware: str) -> dict[str, Section]:
    """In the order in which they matter, for time may end before they do."""
    return {
        "copy": copy,
        "correctness": correctness,
        "decode_attention": decode_attention,
        "matmuls": matmuls,
        "decode_step": lambda bench: decode_step(bench, hardware),
        "end_to_end": lambda bench: end_to_end(bench, hardware),
        "prefill_attention": prefill_attention,
        "elementwise": elementwise,
    }


NEED_SERVEKIT = ("decode_step", "end_to_end")


def main() -> int:
    words = parsed()
    if words.dry_run:
        from tests.kernels.interpreter import install

        install()
    bench = Bench(words.dry_run, time.monotonic() + 60 * words.minutes)
    chosen = sections(words.hardware)
    names = words.only.split(",") if words.only else list(chosen)
    if unknown := [name for name in names if name not in chosen]:
        print(f"there is no section {unknown[0]}; there are {', '.join(chosen)}", file=sys.stderr)
        return 2
    about = environment(bench)
    lines: list[Line] = []
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    for name in names:
        for line in run(name, chosen[name], bench):
            lines.append(line)
            print(told(line), flush=True)
        if not bench.dry:
            torch.cuda.empty_cache()
    command = " ".join(["benchmarks/gpu/run.sh", *sys.argv[1:]])
    written(words, about, lines, command)
    wrong = sum(bool(line.wrong) for line in lines)
    missed = sum("MISSED" in line.said for line in lines)
    print(f"{len(lines)} lines, {wrong} wrong, {missed} targets missed")
    return int(wrong > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run.sh", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, tiny, nothing is timed")
    parser.add_argument("--minutes", type=float, default=8.0, help="what comes later is left out")
    parser.add_argument("--only", help="these sections, with commas")
    parser.add_argument("--out", type=Path, help="a folder; else benchmarks/results")
    parser.add_argument("--hardware", default="h200", help="its option of conf/hardware")
    words = parser.parse_args()
    if not words.dry_run and not torch.cuda.is_available():
        parser.exit(2, "torch sees no GPU here; --dry-run goes the same way on a CPU\n")
    return words


def environment(bench: Bench) -> dict[str, Any]:
    import triton

    found = {"torch": torch.__version__, "triton": triton.__version__}
    if bench.dry:
        return {"device": "none: a dry run, nothing is timed", **found}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory GiB": round(properties.total_memory / 2**30, 1),
        "CUDA": torch.version.cuda or torch.version.hip,
        "python": platform.python_version(),
        **found,
    }


def run(name: str, section: Section, bench: Bench) -> Iterator[Line]:
    """A section that fails is a line, and the others go on."""
    if bench.is_late:
        yield Line(name, "left out: no time", "")
        return
    if name in NEED_SERVEKIT and (lacking := missing()):
        yield Line(name, f"left out: {lacking} is not installed", "")
        return
    try:
        with torch.inference_mode():
            yield from section(bench)
    except Exception as fault:
        yield Line(name, "failed", "", wrong=f"{type(fault).__name__}: {str(fault)[:300]}")


def told(line: Line) -> str:
    numbers = ", ".join(
        f"{value:.4g} {name}" for name, value in line.values.items() if value is not None
    )
    return "  ".join(filter(None, [line.section, line.what, line.shape, numbers, line.said]))


def written(
    words: argparse.Namespace, about: dict[str, Any], lines: list[Line], command: str
) -> None:
    """A dry run is kept only where it is told to be."""
    if words.dry_run and words.out is None:
        return
    folder = words.out or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "_" for c in str(about["device"]).lower())
    stem = "gpu_dry_run" if words.dry_run else f"gpu_{name}_{time.strftime('%Y%m%d')}"
    (folder / f"{stem}.md").write_text(markdown(lines, about, command))
    (folder / f"{stem}.json").write_text(as_json(lines, about, command))
    print(f"written: {folder / stem}.md and .json")


if __name__ == "__main__":
    sys.exit(main())
