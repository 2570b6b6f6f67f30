"""What is compiled: each kernel at the shapes of Llama 3.1 8B, and the dtypes it serves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

WARP_PRODUCTS = {
    "sm_80": "HMMA",
    "sm_89": "HMMA",
    "sm_90": "HMMA",
    "sm_100": "HMMA",
    "gfx942": "v_mfma",
}
"""Of tiles of 16 rows."""

TILE_PRODUCTS = WARP_PRODUCTS | {"sm_90": "HGMMA", "sm_100": "UTCHMMA"}
"""Of tiles of 64 rows and more."""


@dataclass(frozen=True, slots=True)
class Case:
    """`launch` calls a launcher on meta tensors. A `hot` kernel runs in every step, and must not
    spill; `products` is by architecture what has to multiply its matrices, {} where it has none."""

    op: str
    name: str
    launch: Callable[[], object]
    products: dict[str, str]
    hot: bool = True


def meta(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def all_cases() -> Iterator[Case]:
    from benchmarks.kernels.cases_attention import attention_cases
    from benchmarks.kernels.cases_matmul import matmul_cases
    from benchmarks.kernels.cases_small import small_cases

    yield from small_cases()
    yield from attention_cases()
    yield from matmul_cases()
