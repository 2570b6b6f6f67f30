"""Run in a process without Triton's interpreter: what a start with a compile cache compiles.

    python -m tests.engine.compiling FOLDER     prints a line of JSON

A driver that has no device compiles for sm_90 what is launched, and loads nothing.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from servekit.engine.compile_cache import CompileCache
from tests.engine import kernel_of_a_test


class Utils:
    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 20, "multiprocessor_count": 4, "warpSize": 32}

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 1, 1, 0, 0, 1024


class NoDevice:
    utils = Utils()

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *arguments, **options: None


def main(folder: Path) -> None:
    triton.runtime.driver.set_active(NoDevice())
    made: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: made.append(cache_hit)
    cache = CompileCache(folder, ours=kernel_of_a_test.__name__)
    cache.begin()
    preloaded = cache.preload(lambda done, total: None)
    cache.ready()
    before = list(made)
    for dtype in (torch.float32, torch.float16):
        x = torch.empty(64, dtype=dtype, device="meta")
        kernel_of_a_test.twice[(1,)](x, 64, BLOCK=64)
    told = {"preloaded": preloaded, "before": before, "after": made[len(before) :]}
    print(json.dumps({**told, "late": cache.late}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
