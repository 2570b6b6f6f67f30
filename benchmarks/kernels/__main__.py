"""Kernels without a GPU: what they compile to, and what bounds them; with one, how to launch them.

    python -m benchmarks.kernels --compile                 all targets
    python -m benchmarks.kernels --compile sm_90 --op paged_decode
    python -m benchmarks.kernels --roofline                bytes, operations and the time they bound
    python -m benchmarks.kernels --tune                    writes servekit/kernels/tuned/<gpu>.yaml

Exit 1 if a kernel does not compile, spills where it must not, takes more shared memory than there
is, or multiplies matrices without the instructions for it.
"""

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--compile", nargs="*", metavar="TARGET", help="sm_80 ...; none: all")
    parser.add_argument("--roofline", action="store_true", help="of Llama 3.1 8B on an H200")
    parser.add_argument("--tune", action="store_true", help="launch parameters of the GPU at hand")
    parser.add_argument("--op", help="only this operation")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    if words.roofline:
        from benchmarks.kernels.roofline import main as bounds

        return bounds()
    if words.tune:
        from benchmarks.kernels.tune import main as tune

        return tune(words.op)
    if words.compile is None:
        parser.error("say what to do: --compile, --roofline or --tune")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set, which compiles nothing; unset it")
    from benchmarks.kernels.compile_only import CHIPS
    from benchmarks.kernels.compile_table import main as compile_all

    if unknown := [target for target in words.compile if target not in CHIPS]:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(CHIPS)}")
    return compile_all(words.compile or list(CHIPS), words.op, words.json)


if __name__ == "__main__":
    sys.exit(main())
