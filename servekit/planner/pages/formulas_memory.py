"""What is beside the weights, and how many requests the rest holds, as formulas."""

from collections import Counter
from collections.abc import Iterator

from servekit.config.base import DTYPE_BYTES
from servekit.planner.pages.formula import Formula, exact
from servekit.planner.plan import Plan
from servekit.spec import components
from servekit.spec.activations import (
    FUSED_SAMPLER_COPIES,
    expert_workspace,
    sampled_columns,
    sampled_rows,
)
from servekit.spec.components import Component
from servekit.spec.groups import LayerGroup
from servekit.spec.model import GIB, stage_layers

BESIDE, POOL = "Memory beside the weights", "Cache of one copy"


def memory_formulas(made: Plan) -> Iterator[Formula]:
    yield activations(made)
    book = made.ledger
    if book.workspace.bytes:
        yield plain(
            "workspace",
            "what the reference kernels of this release hold beyond that",
            f"{exact(book.workspace.bytes)} bytes",
            book.workspace,
        )
    if book.graphs.bytes:
        yield graphs(made)
    yield runtime(made)
    yield from pool(made)
    yield from requests(made)


def plain(name: str, words: str, numbers: str, part: Component) -> Formula:
    """Of a component, GiB."""
    return Formula(BESIDE, name, words, f"{numbers} / 2^30", part.bytes / GIB, "GiB", part.standing)


def as_measured(name: str, part: Component, beside: int = 0) -> Formula:
    numbers = f"{exact(part.bytes - beside)} bytes"
    numbers = f"({numbers} + {exact(beside)} of the null block)" if beside else numbers
    return plain(name, "from a start-up log of this site", numbers, part)


def activations(made: Plan) -> Formula:
    """The sampler's peak where that is the larger, else that of the forward pass by its tokens."""
    config, part = made.config, made.ledger.activations
    if part.standing == "measured":
        return as_measured("activations", part)
    shape, element = config.model.shape, DTYPE_BYTES[config.model.dtype]
    tokens, rows = config.scheduler.max_num_batched_tokens, sampled_rows(config)
    vocab = sampled_columns(shape)
    experts = expert_workspace(config, made.ledger.stage)
    beside = element * tokens * shape.hidden_size + experts
    if config.hardware.kind != "cpu" and part.bytes == int(
        FUSED_SAMPLER_COPIES * rows * vocab * 4 + beside
    ):
        numbers = (
            f"({FUSED_SAMPLER_COPIES} copies x {exact(rows)} requests x {exact(vocab)} tokens x 4 "
            f"bytes + {element} bytes x {exact(tokens)} tokens x {exact(shape.hidden_size)}"
        ) + (f" + {exact(experts)} of experts)" if experts else ")")
        words = "the sampler: copies of float32 logits, beside the residual stream"
        return plain("activations", words, numbers, part)
    numbers = f"{exact(tokens)} tokens x {part.bytes / tokens:.12g} bytes"
    words = "one step at its limits: tokens x what each holds at the peak"
    return plain("activations", words, numbers, part)


def graphs(made: Plan) -> Formula:
    config, part = made.config, made.ledger.graphs
    if part.standing == "measured":
        return as_measured("graphs", part)
    shape = config.model.shape
    here = stage_layers(shape.layers, config.parallelism.pipeline)[made.ledger.stage]
    experts = sum(layer in here for layer in shape.moe_layers)
    numbers = f"{components.GRAPHS_GIB} + {components.GRAPHS_LAYER_GIB} x {len(here)} layers"
    if experts:
        numbers += f" + {components.GRAPHS_EXPERTS_GIB} x {experts} layers with experts"
    words = "fixed + of each layer, fitted to published start-up logs"
    return Formula(BESIDE, "graphs", words, numbers, part.bytes / GIB, "GiB", part.standing)


def runtime(made: Plan) -> Formula:
    part, block = made.ledger.runtime, made.kv.bytes_per_block
    if part.standing == "measured":
        return as_measured("runtime", part, block)
    numbers = f"({exact(part.bytes - block)} bytes + {exact(block)} of the null block)"
    return plain("runtime", part.note, numbers, part)


def pool(made: Plan) -> Iterator[Formula]:
    """What is free, the share of it that the cache takes, and the blocks that makes."""
    book, kv = made.ledger, made.config.kv
    parts = [part for part in book.components.values() if part is not book.kv and part.bytes]
    free = book.total_bytes - sum(part.bytes for part in parts)
    numbers = f"({exact(book.total_bytes)} - " + " - ".join(exact(part.bytes) for part in parts)
    standing = "modelled" if book.band_bytes else "exact"
    yield Formula(
        POOL,
        "free",
        "the device - all that is beside the cache",
        f"{numbers}) / 2^30",
        free / GIB,
        "GiB",
        standing,
    )
    block, blocks = made.kv.bytes_per_block, made.kv.num_blocks
    if kv.memory_fraction is not None:
        words = "kv.memory_fraction x free / bytes of a block"
        size = f"floor({kv.memory_fraction} x max(0, {exact(free)} bytes) / {exact(block)})"
    elif kv.memory_gib is not None:
        words = "kv.memory_gib / bytes of a block"
        size = f"floor({kv.memory_gib} GiB x 2^30 / {exact(block)})"
    else:
        words, size = "those that hold kv.capacity_tokens", f"{exact(blocks)} blocks"
    if made.config.parallelism.pipeline > 1:
        words += "; the stage that has fewest decides for all"
    yield Formula(POOL, "blocks", words, size, blocks, "blocks", book.kv.standing)


def requests(made: Plan) -> Iterator[Formula]:
    """Blocks of a request of full length, group by group, and how many such there are at once."""
    layout, longest = made.kv, made.config.model.max_model_len
    counts = Counter((group.kind, group.window) for group in layout.groups)
    firsts = {(group.kind, group.window): group for group in layout.groups}
    terms = [
        (f"{count} groups x " if count > 1 else "") + blocks_of(firsts[key], made)
        for key, count in counts.items()
    ]
    need = layout.blocks_for(longest)
    words = "of each group of layers: tokens / tokens of a block, rounded up"
    if any(group.window is not None for group in layout.groups):
        words += "; windows also hold the tokens of a step"
    yield Formula(
        POOL, "blocks of a request", words, " + ".join(terms) or "0", need, "blocks", "exact"
    )
    yield Formula(
        POOL,
        f"requests of {exact(longest)} tokens at once",
        "blocks / blocks of a request",
        f"{exact(layout.num_blocks)} / {exact(need)}",
        made.max_concurrency,
        "requests",
        made.ledger.kv.standing,
    )


def blocks_of(group: LayerGroup, made: Plan) -> str:
    """`LayerGroup.blocks_for` with the numbers in it."""
    layout, size = made.kv, exact(made.kv.block_size * group.stretch)
    drafts = f" + {layout.drafts} guesses" if layout.drafts else ""
    longest = f"{exact(made.config.model.max_model_len)}{drafts}"
    if group.kind == "state":
        return f"(1 state{drafts})"
    if group.window is None:
        return f"ceil(({longest}) / {size})" if drafts else f"ceil({longest} / {size})"
    flight, window = exact(layout.in_flight), exact(group.window)
    if group.kind == "chunked":
        return f"ceil(min({window} + {flight}, {longest}) / {size})"
    return f"(ceil(min({window} - 1 + {flight}, {longest}) / {size}) + 1)"
