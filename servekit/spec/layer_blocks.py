"""What one layer keeps of a token, and of a block.

Layers of all kinds draw blocks of equal bytes from one pool. Where full-attention layers keep other
bytes of a token than those that slide, the kind that keeps less puts so many times more tokens into
a block, as vLLM does; if that is no whole number, the rest of its block is padding.
"""

from dataclasses import dataclass

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config, KvDtype
from servekit.config.shape import Shape
from servekit.spec.model import kv_heads_per_rank
from servekit.spec.state import layer_state_bytes
from servekit.spec.tensors import ceil_div

INDEX_GROUP = 128
"""Numbers of an indexer's key that share a float32 scale, where the cache is narrower than 16
bits: they are fp8 then, whichever narrow dtype keys and values have."""


def head_bytes(dtype: KvDtype, width: int) -> int:
    """One key or value head of one token, with its scales.

    fp8 has one scale a tensor, which is nothing; int8 and int4 a float32 for each head of each
    token; nvfp4 one byte for 16 values.
    """
    match dtype:
        case "fp8":
            return width
        case "int8":
            return width + 4
        case "int4":
            return ceil_div(width, 2) + 4
        case "nvfp4":
            return ceil_div(width, 2) + ceil_div(width, 16)
    return width * DTYPE_BYTES[dtype]


def layer_bytes_per_token(
    shape: Shape, dtype: KvDtype, tensor: int = 1, *, full: bool = False
) -> int:
    """What one attention layer keeps of one token on one of `tensor` ranks; `full` ones see all.

    Latent attention keeps one vector for keys and values and all heads, so every rank has it whole.
    Keys that are values are kept twice: as keys they are rotated, as values they are not.
    """
    if shape.mla is not None:
        return head_bytes(dtype, shape.mla.kv_lora_rank + shape.mla.rope_head_dim)
    sizes = shape.heads_of(full=full)
    both = head_bytes(dtype, sizes.head_dim) + head_bytes(dtype, sizes.value_head_dim)
    return kv_heads_per_rank(shape, tensor, full=full) * both


def index_bytes_per_token(shape: Shape, dtype: KvDtype) -> int:
    """What a layer with an indexer keeps of one token beside its latent vector, on every rank."""
    if shape.indexer is None:
        return 0
    width = shape.indexer.head_dim
    if dtype in DTYPE_BYTES:
        return head_bytes(dtype, width)
    return width + 4 * ceil_div(width, INDEX_GROUP)


def kept_bytes_per_token(shape: Shape, dtype: KvDtype) -> int:
    """What all layers of a model on one rank keep of a token, while no window has passed it."""
    own = shape.own_kv_layers
    full = sum(shape.window(layer) is None for layer in own)
    kept = full * layer_bytes_per_token(shape, dtype, full=True)
    kept += (len(own) - full) * layer_bytes_per_token(shape, dtype)
    return kept + len(shape.indexed_layers) * index_bytes_per_token(shape, dtype)


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's part of a block."""

    tokens: int
    bytes: int


def pages(config: Config) -> tuple[Page, Page]:
    """Of layers that slide or carry a state, and of those that see everything.

    Without kv.hybrid every layer keeps every token, and a block is made of parts of unequal bytes.
    Beside layers with a state, blocks are made of so many times kv.block_size tokens that a state
    is no larger than one; where there is nothing else, a block is a state and holds any request.
    """
    shape, tensor, unit = config.model.shape, config.parallelism.tensor, config.kv.block_size
    state = 0
    if shape.state is not None and shape.state.layers:
        state = layer_state_bytes(shape.state, config.model.dtype, tensor)
        if not shape.attention_layers:
            page = Page(config.model.max_model_len, state)
            return page, page
    kept = [layer_bytes_per_token(shape, config.kv.dtype, tensor, full=kind) for kind in KINDS]
    if not state and not config.kv.hybrid:
        return Page(unit, unit * kept[False]), Page(unit, unit * kept[True])
    present = {shape.window(layer) is None for layer in shape.own_kv_layers}
    widest = max(kept[kind] for kind in present or KINDS)
    block = unit * ceil_div(state, unit * widest) if state else unit

    def page_of(each: int) -> Page:
        times = 1 if widest % each else widest // each
        return Page(block * times, block * widest)

    sliding, full = (page_of(kept[kind] if kind in present else widest) for kind in KINDS)
    return sliding, full


KINDS = (False, True)
"""Whether layers see everything, as places in a list."""


def block_bytes(config: Config, layers: tuple[int, ...]) -> int:
    """What these layers have in one block of their group, an indexer's keys too."""
    shape = config.model.shape
    sliding, full = pages(config)
    seeing = sum(shape.window(layer) is None for layer in layers)
    indexed = {*shape.indexed_layers}
    index = full.tokens * index_bytes_per_token(shape, config.kv.dtype)
    keys = seeing * full.bytes + (len(layers) - seeing) * sliding.bytes
    return keys + index * sum(layer in indexed for layer in layers)


def drafted_bytes_per_token(config: Config) -> int:
    """Keys and values of those who guess: a small model, or the model's own extra layers, which are
    like its last and have an indexer if it has any.
    """
    shape, tensor, dtype = config.model.shape, config.parallelism.tensor, config.kv.dtype
    if config.speculative.method == "mtp":
        full = shape.window(shape.layers - 1) is None
        each = layer_bytes_per_token(shape, dtype, tensor, full=full)
        return shape.mtp_layers * (each + index_bytes_per_token(shape, dtype))
    return ceil_div(config.speculative.draft_kv_bytes_per_token or 0, tensor)
