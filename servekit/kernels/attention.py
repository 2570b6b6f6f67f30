"""Attention over the paged cache, by torch or by Triton: what a step works out, then each layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from servekit.kernels.attention_plan import plan_attention
from servekit.kernels.kv import LayerCache
from servekit.kernels.paged_attention import paged_attention_reference
from servekit.kernels.paged_decode import paged_decode_triton
from servekit.kernels.paged_prefill import paged_prefill_triton
from servekit.kernels.paged_step import PagedStep, splits_for
from servekit.kernels.target import target


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of the R rows of a step, on the host and, int32, on the device; the first `decodes` rows are
    single tokens of requests that decode."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]
    decodes: int
    query_starts: torch.Tensor
    contexts: torch.Tensor


class Attention(Protocol):
    """`plans` are worked out once a step, one for each block table; a layer passes its own on."""

    def plans(
        self,
        lengths: Lengths,
        tables: Sequence[torch.Tensor],
        cache: LayerCache,
        *,
        window: int | None,
        dtype: torch.dtype,
    ) -> Sequence[Any]: ...

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: LayerCache,
        plan: Any,
        *,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        """[N, heads * head_dim] of `query` [N, heads, head_dim]; as `paged_attention_reference`."""
        ...


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """`gather_tokens`: context tokens of decode rows that are copied together; `read_back`: what
    writes to the cache hands no keys and values on."""

    gather_tokens: int
    read_back: bool = False

    def plans(
        self,
        lengths: Lengths,
        tables: Sequence[torch.Tensor],
        cache: LayerCache,
        *,
        window: int | None,
        dtype: torch.dtype,
    ) -> Sequence[Any]:
        return plan_attention(
            lengths.query_lens,
            lengths.seq_lens,
            tables,
            key_cache=cache.keys,
            window=window,
            dtype=dtype,
            gather_tokens=self.gather_tokens,
            read_back=self.read_back,
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: LayerCache,
        plan: Any,
        *,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        return paged_attention_reference(
            query, key, value, cache, plan, scale=scale, softcap=softcap
        )


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """With `one_order` every row goes through the kernel of prompts, whose sums have one order: a
    token's result does not depend on which step it is computed in, or with whom."""

    one_order: bool = False

    def plans(
        self,
        lengths: Lengths,
        tables: Sequence[torch.Tensor],
        cache: LayerCache,
        *,
        window: int | None,
        dtype: torch.dtype,
    ) -> Sequence[PagedStep]:
        decodes = 0 if self.one_order else lengths.decodes
        kv_heads = cache.keys.shape[2]
        most = tables[0].shape[1] * cache.block_size
        most = most if window is None else min(most, window)
        splits = splits_for(max(1, decodes), kv_heads, most, target().processors)
        return [
            PagedStep(
                query_starts=lengths.query_starts,
                seq_lens=lengths.contexts,
                block_table=table if table.dtype == torch.int32 else table.int(),
                tokens=sum(lengths.query_lens),
                decodes=decodes,
                splits=splits,
                window=window,
            )
            for table in tables
        ]

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: LayerCache,
        plan: PagedStep,
        *,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        out = query.new_empty(query.shape)
        if plan.tokens < len(query):
            out[plan.tokens :] = 0
        if plan.decodes:
            paged_decode_triton(query, cache, plan, out, scale=scale, softcap=softcap)
        if plan.decodes < len(plan.seq_lens):
            paged_prefill_triton(query, cache, plan, out, scale=scale, softcap=softcap)
        return out.flatten(1)
