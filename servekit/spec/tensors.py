"""The vocabulary of counting weights: one tensor on one rank, and how ranks share a layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Part = Literal["attention", "state", "mlp", "experts", "shared_experts", "routers", "norms"]


def ceil_div(amount: int, unit: int) -> int:
    return -(-amount // unit)


def heads_per_rank(kv_heads: int, tensor: int) -> int:
    """Whole key and value heads; with more ranks than heads they are replicated."""
    return max(1, kv_heads // tensor)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Weights as one rank holds them: `copies` times [outputs, inputs].

    A projection takes the weight format, anything else stays in `model.dtype`. `repeats` is how
    often the engine holds each number: the norm of a head has a row for every head.
    """

    part: Part
    outputs: int
    inputs: int = 1
    copies: int = 1
    is_projection: bool = False
    repeats: int = 1

    @property
    def parameters(self) -> int:
        return self.copies * self.outputs * self.inputs


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's share: `tensor` parts of a layer, of the experts `experts` whole ones, each cut
    into `expert_tensor` parts.
    """

    tensor: int
    experts: int
    expert_tensor: int

    def of(self, amount: int) -> int:
        """Rows or columns on one rank; at least one, for what cannot be cut is on every rank."""
        return ceil_div(amount, self.tensor)

    def of_expert(self, width: int) -> int:
        return ceil_div(width, self.expert_tensor)


def projection(
    part: Part, inputs: int, outputs: int, *, bias: bool = False, copies: int = 1
) -> Iterator[Tensor]:
    yield Tensor(part, outputs=outputs, inputs=inputs, copies=copies, is_projection=True)
    if bias:
        yield Tensor(part, outputs=outputs, copies=copies)
