"""The bytes of keys and values, as formulas."""

from collections.abc import Iterator

from servekit.config.base import DTYPE_BYTES
from servekit.planner.pages.formula import Formula, exact, short
from servekit.planner.plan import Plan
from servekit.spec.kv import largest_group
from servekit.spec.layer_blocks import (
    KINDS,
    Page,
    drafted_bytes_per_token,
    head_bytes,
    index_bytes_per_token,
    layer_bytes_per_token,
    pages,
)
from servekit.spec.model import kv_heads_per_rank

CACHE = "Keys and values"


def cache_formulas(made: Plan) -> Iterator[Formula]:
    config = made.config
    shape, tensor, dtype = config.model.shape, config.parallelism.tensor, config.kv.dtype
    present = {shape.has_two_kinds and shape.window(layer) is None for layer in shape.own_kv_layers}
    for full in sorted(present):
        name = "a token in a layer"
        if shape.has_two_kinds:
            name += " that sees everything" if full else " that slides"
        words, numbers = layer_of(made, full=full)
        value = layer_bytes_per_token(shape, dtype, tensor, full=full)
        yield Formula(CACHE, name, words, numbers, value, "bytes", "exact")
    if index := index_bytes_per_token(shape, dtype):
        yield index_key(made, index)
    yield block(made)
    if made.kv.bytes_per_token:
        yield marginal(made)


def index_key(made: Plan, value: int) -> Formula:
    """In 16 bits like the rest, or in fp8 with its scales."""
    mla, dtype = made.config.model.shape.mla, made.config.kv.dtype
    assert mla is not None
    assert mla.indexer is not None
    width = mla.indexer.head_dim
    words, numbers = "width x bytes", f"{width} x {DTYPE_BYTES.get(dtype, 1)} bytes"
    if dtype not in DTYPE_BYTES:
        words, numbers = f"{words} + scales", f"{numbers} + {value - width} bytes of scales"
    name, words = "an indexer's key in a layer", f"{words}; every rank has it whole"
    return Formula(CACHE, name, words, numbers, value, "bytes", "exact")


def block(made: Plan) -> Formula:
    """Of the group of layers with most bytes in it."""
    config, layout, stage = made.config, made.kv, made.ledger.stage
    shape, members = config.model.shape, largest_group(config, stage)
    both, indexed = pages(config), {*shape.indexed_layers}
    full = sum(shape.window(layer) is None for layer in members)
    terms = [
        f"{count} layers x {layer_part(made, kind, both[kind])}"
        for kind, count in zip(KINDS, (len(members) - full, full), strict=True)
        if count
    ]
    tokens = both[True].tokens
    if count := sum(layer in indexed for layer in members):
        each = index_bytes_per_token(shape, config.kv.dtype)
        terms.append(f"{count} layers x {exact(tokens)} tokens x {each} bytes of an index")
    words = "a group of layers" if len(layout.groups) > 1 else "layers"
    words += " x tokens of a block x a token in a layer"
    if stage == config.parallelism.pipeline - 1 and (each := drafted_bytes_per_token(config)):
        terms.append(f"{exact(each * tokens)} of guesses")
        words += ", and guesses"
    numbers = " + ".join(terms) or "1"
    return Formula(CACHE, "a block", words, numbers, layout.bytes_per_block, "bytes", "exact")


def layer_part(made: Plan, full: bool, page: Page) -> str:
    """What one layer has in a block: its tokens, or what another kind makes it as large as."""
    config = made.config
    shape, tensor, dtype = config.model.shape, config.parallelism.tensor, config.kv.dtype
    each = layer_bytes_per_token(shape, dtype, tensor, full=full)
    if page.bytes == page.tokens * each:
        return f"{exact(page.tokens)} tokens x {exact(each)} bytes"
    return f"{exact(page.bytes)} bytes of a {'state' if shape.state else 'larger layer'}"


def marginal(made: Plan) -> Formula:
    """Layer by layer where all are alike and keep every token."""
    config, layout, name = made.config, made.kv, "a token"
    shape = config.model.shape
    drafted = drafted_bytes_per_token(config)
    alike = not (shape.has_two_kinds or shape.indexed_layers or drafted)
    if layout.uniform and alike:
        layers = len(largest_group(config, made.ledger.stage))
        words, numbers = layer_of(made, full=False)
        factor, _, rest = numbers.partition("2 x ")
        numbers = f"{layers} layers x {numbers}" if factor else f"2 x {layers} layers x {rest}"
        words = f"layers x {words}"
    else:
        full = max(1, sum(group.kind == "full" for group in layout.groups))
        name = "one more token of a long request"
        words = "a block x groups that keep every token / tokens of a block"
        tokens = exact(layout.full_block_size)
        numbers = f"floor({exact(layout.bytes_per_block)} bytes x {full} / {tokens})"
    return Formula(CACHE, name, words, numbers, layout.bytes_per_token, "bytes", "exact")


def layer_of(made: Plan, *, full: bool) -> tuple[str, str]:
    """Bytes of one token in one layer on one rank, in words and in numbers."""
    config = made.config
    shape, dtype, tensor = config.model.shape, config.kv.dtype, config.parallelism.tensor
    element = DTYPE_BYTES.get(dtype, 1)
    plain = dtype in DTYPE_BYTES or dtype == "fp8"
    if shape.mla is not None:
        latent, rope = shape.mla.kv_lora_rank, shape.mla.rope_head_dim
        words = "(latent vector + rotated part) x bytes; every rank has it whole"
        if plain:
            return words, f"({latent} latent + {rope} rope) x {element} bytes"
        return f"{words}, with scales", f"{head_bytes(dtype, latent + rope)} bytes"
    sizes, heads = shape.heads_of(full=full), kv_heads_per_rank(shape, tensor, full=full)
    width, value = sizes.head_dim, sizes.value_head_dim
    spread = f" of {sizes.kv_heads}, over {tensor} ranks" if tensor > 1 else ""
    words = f"keys and values x KV heads{spread} x head width x bytes"
    if plain and value == width:
        return words, f"2 x {heads} KV heads x {value} x {element} bytes"
    if plain:
        return words, f"{heads} KV heads x ({width} + {value}) x {element} bytes"
    key, val = head_bytes(dtype, width), head_bytes(dtype, value)
    return f"{words}, with scales", f"{heads} KV heads x ({short(key)} + {short(val)} bytes)"
