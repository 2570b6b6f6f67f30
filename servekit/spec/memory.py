"""The one capacity model: what fills a device's memory, and how many tokens the cache then holds.

Plan, gate, engine and metrics all ask `ledger`. It is for the worst rank: all ranks of a pipeline
stage hold the same, and the stage with the fewest blocks decides how many there are anywhere.
"""

from dataclasses import dataclass, replace
from typing import Literal

from servekit.config.schema import Config
from servekit.spec.components import (
    Component,
    activations_component,
    graphs_component,
    runtime_component,
    weights_component,
    workspace_component,
)
from servekit.spec.kv import KvLayout, Rule, empty_layout, kv_layout
from servekit.spec.model import GIB

Verdict = Literal["fits", "does_not_fit", "unsure"]
WORST_FIRST: tuple[Verdict, ...] = ("does_not_fit", "unsure", "fits")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Who has the memory of one device. The six components and `unused_bytes` make the total.

    `unused_bytes` is negative by as much as is missing. `kv_fraction` is None where the user named
    the size of the cache, so that one shorter than `max_model_len` is what was asked for.
    """

    total_bytes: int
    stage: int
    weights: Component
    activations: Component
    workspace: Component
    graphs: Component
    runtime: Component
    kv: Component
    layout: KvLayout
    rule: Rule
    kv_fraction: float | None
    max_model_len: int

    @property
    def components(self) -> dict[str, Component]:
        return {
            "weights": self.weights,
            "activations": self.activations,
            "workspace": self.workspace,
            "graphs": self.graphs,
            "runtime": self.runtime,
            "kv": self.kv,
        }

    @property
    def used_bytes(self) -> int:
        return sum(component.bytes for component in self.components.values())

    @property
    def unused_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    @property
    def fixed_bytes(self) -> int:
        """All but the cache."""
        return self.used_bytes - self.kv.bytes

    @property
    def band_bytes(self) -> int:
        """How far `fixed_bytes` may be off, at worst all in one direction."""
        return sum(part.band_bytes for part in self.components.values()) - self.kv.band_bytes

    @property
    def pool_is_explicit(self) -> bool:
        return self.kv_fraction is None

    @property
    def holds_longest_request(self) -> bool:
        return self.holds(self.layout.num_blocks)

    @property
    def fits(self) -> bool:
        """It may be launched: it fits, or as far as anybody knows before it is tried."""
        return self.verdict != "does_not_fit"

    @property
    def verdict(self) -> Verdict:
        """Everything is in memory, and the cache holds a request of the length that was promised.

        A cache whose size the user named need only hold something: admission refuses the rest.
        unsure: it does at one end of the band, and not at the other. The workspace is the most that
        code may take, which was never measured on a device: at the good end there is none.
        """
        least_bytes = self.band_bytes + self.workspace.bytes
        if self.pool_is_explicit:
            least = self.used_bytes - least_bytes
            if least > self.total_bytes or self.layout.num_blocks < self.layout.blocks_for(1):
                return "does_not_fit"
            most = self.used_bytes + self.band_bytes
            return "fits" if most <= self.total_bytes else "unsure"
        if not self.holds(self.blocks_with(least_bytes)):
            return "does_not_fit"
        return "fits" if self.holds(self.blocks_with(-self.band_bytes)) else "unsure"

    def holds(self, blocks: int) -> bool:
        """So many blocks are enough for one request of `max_model_len`."""
        return self.layout.blocks_for(self.max_model_len) <= blocks

    def blocks_with(self, more_bytes: int) -> int:
        """Blocks that a share of what is free would be, were so much more of it free."""
        assert self.kv_fraction is not None, "a cache of named size does not change"
        free = max(0, self.total_bytes - self.fixed_bytes + more_bytes)
        return int(self.kv_fraction * free) // self.layout.bytes_per_block

    @property
    def problem(self) -> str | None:
        """Why it does not fit, or may not, in one sentence; None if it does."""
        match self.verdict:
            case "fits":
                return None
            case "unsure":
                return self._doubt()
        fixed, total = self.fixed_bytes / GIB, self.total_bytes / GIB
        if fixed > total:
            return (
                f"weights, activations and runtime take {fixed:.2f} GiB of {total:.2f} GiB, "
                "before any KV cache"
            )
        if self.unused_bytes < 0:
            return (
                f"{self.rule} asks for {self.kv.bytes / GIB:.2f} GiB of KV cache, and "
                f"{total - fixed:.2f} GiB of {total:.2f} GiB is free after weights, activations "
                "and runtime"
            )
        layout = self.layout
        if layout.num_blocks < layout.blocks_for(1):
            return (
                f"{self.rule} leaves {self.kv.bytes / GIB:.3f} GiB of KV cache, which is "
                f"{layout.num_blocks} blocks of {layout.block_size} tokens, and the shortest "
                f"request needs {layout.blocks_for(1)}"
            )
        return (
            f"the KV cache holds {layout.longest_request} tokens, and one request may have "
            f"{self.max_model_len} (model.max_model_len)"
        )

    def _doubt(self) -> str:
        band = self.band_bytes / GIB
        if self.pool_is_explicit:
            spare, total = self.unused_bytes / GIB, self.total_bytes / GIB
            left = f"{spare:.2f} GiB are left" if spare >= 0 else f"{-spare:.2f} GiB are missing"
            return f"{left} of {total:.2f} GiB, and what is used is known to {band:.2f} GiB only"
        least, most = (
            replace(self.layout, num_blocks=self.blocks_with(more)).longest_request
            for more in (-self.band_bytes, self.band_bytes)
        )
        return (
            f"the KV cache will hold {least} to {most} tokens, as what else is used is known to "
            f"{band:.2f} GiB only, and one request may have {self.max_model_len} "
            "(model.max_model_len)"
        )


def ledger(
    config: Config,
    *,
    weights_bytes: int | None = None,
    stored_weights_bytes: int | None = None,
    graphs_bytes: int | None = None,
) -> Ledger:
    """What a deployment needs of each device, on its worst rank. Pure arithmetic; raises nothing.

    `weights_bytes` is what the loaded weights of one device measure, `graphs_bytes` what captured
    graphs do. `stored_weights_bytes` is what
    the files say that one device alone will hold, and is used where there is but one. Without
    either, weights are planned. Worst is the stage with the worst verdict, of those the one with
    the fewest blocks, of those the heaviest; there are as many blocks as the poorest stage has.
    """
    stages = stage_ledgers(
        config,
        weights_bytes=weights_bytes,
        stored_weights_bytes=stored_weights_bytes,
        graphs_bytes=graphs_bytes,
    )
    worst = min(
        stages,
        key=lambda book: (
            WORST_FIRST.index(book.verdict),
            book.layout.num_blocks,
            -book.weights.bytes,
        ),
    )
    fewest = min(book.layout.num_blocks for book in stages)
    return replace(worst, layout=replace(worst.layout, num_blocks=fewest))


def stage_ledgers(
    config: Config,
    *,
    weights_bytes: int | None = None,
    stored_weights_bytes: int | None = None,
    graphs_bytes: int | None = None,
) -> tuple[Ledger, ...]:
    """One for each pipeline stage, by itself; a cache of named size is as large on each."""
    return tuple(
        stage_ledger(
            config,
            stage,
            measured=weights_bytes,
            stored=stored_weights_bytes,
            graphs_bytes=graphs_bytes,
        )
        for stage in range(config.parallelism.pipeline)
    )


def stage_ledger(
    config: Config,
    stage: int,
    *,
    measured: int | None = None,
    stored: int | None = None,
    graphs_bytes: int | None = None,
) -> Ledger:
    total = int(config.hardware.memory_gib * GIB)
    weights = weights_component(config, stage, measured=measured, stored=stored)
    activations = activations_component(config, stage)
    workspace = workspace_component(config, stage)
    graphs = graphs_component(config, stage, measured=graphs_bytes)
    runtime = runtime_component(config, empty_layout(config, stage))
    fixed = (weights, activations, workspace, graphs, runtime)
    layout, rule = kv_layout(config, total - sum(part.bytes for part in fixed), stage)
    named = config.kv.memory_gib
    size = layout.bytes if named is None else int(named * GIB)
    fraction = config.kv.memory_fraction
    band = int((fraction or 0) * sum(part.band_bytes for part in fixed))
    return Ledger(
        total_bytes=total,
        stage=stage,
        weights=weights,
        activations=activations,
        workspace=workspace,
        graphs=graphs,
        runtime=runtime,
        kv=Component(size, "modelled" if band else "exact", f"by {rule}", band),
        layout=layout,
        rule=rule,
        kv_fraction=fraction,
        max_model_len=config.model.max_model_len,
    )
