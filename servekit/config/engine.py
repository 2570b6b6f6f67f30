"""How steps are computed: the engine's group of the configuration."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import Group

KernelKind = Literal["triton", "torch"]
KERNEL_OPS = (
    *("rms_norm", "add_rms_norm", "gated_activation", "rope_and_cache", "attention"),
    *("moe", "sample"),
)
OTHERS = "others"


class EngineConfig(Group):
    in_flight: Literal[1, 2] = Field(
        description="steps under way at once; 2: the next is planned and its inputs are laid out "
        "while one runs, 1: after it"
    )
    kernels: KernelKind | dict[str, KernelKind] = Field(
        description="what computes an operation; auto: Triton on a GPU, torch on a CPU. One word, "
        "or one for each operation: engine.kernels='{attention: torch, others: triton}'"
    )

    deterministic: bool = Field(
        description="a request gets the same bits alone and in any batch, at the cost of slower "
        "products and, for long contexts, of slower decoding; for Triton kernels"
    )

    @model_validator(mode="after")
    def _operations(self) -> Self:
        if isinstance(self.kernels, str):
            return self
        known = (*KERNEL_OPS, OTHERS)
        if unknown := [op for op in self.kernels if op not in known]:
            raise ValueError(f"there is no operation {unknown[0]}; there are {', '.join(known)}")
        if OTHERS not in self.kernels and set(self.kernels) != set(KERNEL_OPS):
            missing = next(op for op in KERNEL_OPS if op not in self.kernels)
            raise ValueError(f"kernels says nothing of {missing}; say it, or others: torch")
        return self

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        by_torch = [op for op, kind in self.kernels_by_op.items() if kind == "torch"]
        if self.deterministic and by_torch:
            raise ValueError(
                f"deterministic needs Triton for every operation, and {', '.join(by_torch)} would "
                "be by torch, whose sums depend on the batch; it is for a GPU"
            )
        return self

    @property
    def kernels_by_op(self) -> Mapping[str, str]:
        """triton or torch, for every operation."""
        given = self.kernels
        if isinstance(given, str):
            return dict.fromkeys(KERNEL_OPS, given)
        return {op: given[op] if op in given else given[OTHERS] for op in KERNEL_OPS}
