"""Parameters, weights and the bytes of keys and values, as formulas."""

from collections.abc import Iterator
from dataclasses import fields

from servekit.config.base import DTYPE_BYTES
from servekit.config.parts import Mla
from servekit.config.shape import Shape
from servekit.planner.formula import Formula, exact, short
from servekit.planner.plan import Plan
from servekit.spec.kv import (
    block_and_page,
    drafted_bytes_per_token,
    head_bytes,
    layer_bytes_per_token,
)
from servekit.spec.model import (
    GIB,
    PARTS,
    RankWeights,
    Share,
    kv_heads_per_rank,
    parameters,
    rank_weights,
)

MODEL, WEIGHTS, CACHE = "Parameters of the model", "Weights of one device", "Keys and values"


def model_formulas(made: Plan) -> Iterator[Formula]:
    yield from parameter_formulas(made.config.model.shape)
    yield from weight_formulas(made)
    yield from cache_formulas(made)


def parameter_formulas(shape: Shape) -> Iterator[Formula]:
    counts = parameters(shape)
    yield from known_parts(shape)
    sizes = {part: getattr(counts, part) for part in PARTS if part != "mtp"}
    terms = " + ".join(f"{exact(size)} {part}" for part, size in sizes.items() if size)
    yield Formula(MODEL, "parameters", "all parts", terms, counts.total, "parameters", "exact")
    if shape.moe is None:
        return
    always = counts.total - counts.experts - counts.embedding - counts.head - counts.other
    table = shape.vocab_size * shape.hidden_size
    yield Formula(
        MODEL,
        "active parameters",
        "all but the embedding, and of the experts those a token is sent to",
        f"{exact(always)} + {exact(table)} head + floor({exact(counts.experts)} experts x "
        f"{shape.moe.experts_per_token} / {shape.moe.experts})",
        counts.active,
        "parameters",
        "exact",
    )


def known_parts(shape: Shape) -> Iterator[Formula]:
    """Parts that one product gives; what is beside it, such as biases, is added by itself."""
    counts, hidden = parameters(shape), exact(shape.hidden_size)
    table = f"{exact(shape.vocab_size)} tokens x {hidden}"
    yield product("embedding", "vocabulary x hidden size", table, counts.embedding)
    if shape.state is None and not shape.shared_kv_layers and counts.attention:
        layers = f"{len(shape.attention_layers)} layers x "
        words, each = attention_of(shape)
        yield product("attention", words, f"{layers}({each})", counts.attention)
    matrices = "3" if shape.gated_mlp else "2"
    if counts.mlp:
        inner = f"{len(shape.dense_layers)} layers x {matrices} x {hidden} x "
        inner += exact(shape.intermediate_size)
        yield product("mlp", "layers x matrices x hidden size x width", inner, counts.mlp)
    if shape.moe is not None and counts.experts:
        inner = f"{len(shape.moe_layers)} layers x {shape.moe.experts} experts x {matrices} x "
        inner += f"{hidden} x {exact(shape.moe.intermediate_size)}"
        yield product(
            "experts", "layers x experts x matrices x hidden size x width", inner, counts.experts
        )


def product(name: str, words: str, numbers: str, value: int) -> Formula:
    """What the product does not come to is what is beside it: biases."""
    rest = value - round(evaluate(numbers))
    if rest:
        words, numbers = f"{words}, and biases", f"{numbers} + {exact(rest)} of biases"
    return Formula(MODEL, name, words, numbers, value, "parameters", "exact")


def evaluate(product_of: str) -> float:
    """A sum of products in parentheses, as those here are; see `Formula.numbers`."""
    total = 1.0
    head, _, inner = product_of.partition("(")
    for factor in filter(None, head.rstrip(" x").split(" x ")):
        total *= leading(factor)
    if not inner:
        return total
    terms = inner.rstrip(")").split(" + ")
    return total * sum(evaluate(term) for term in terms)


def leading(factor: str) -> float:
    return float(factor.split()[0].replace(",", ""))


def attention_of(shape: Shape) -> tuple[str, str]:
    """Of one layer, in words and in numbers."""
    if shape.mla is not None:
        return latent_attention_of(shape, shape.mla)
    hidden, value_dim = exact(shape.hidden_size), shape.value_head_dim or shape.head_dim
    terms = (
        f"{hidden} x {shape.heads} heads x {shape.head_dim}",
        f"{hidden} x {shape.kv_heads} KV heads x {shape.head_dim}",
        f"{hidden} x {shape.kv_heads} KV heads x {value_dim}",
        f"{shape.heads} heads x {value_dim} x {hidden}",
    )
    return "layers x (queries + keys + values + output)", " + ".join(terms)


def latent_attention_of(shape: Shape, mla: Mla) -> tuple[str, str]:
    hidden, heads = exact(shape.hidden_size), shape.heads
    head, value_dim = mla.nope_head_dim + mla.rope_head_dim, shape.value_head_dim
    value = value_dim or mla.nope_head_dim
    if mla.q_lora_rank is None:
        queries = [f"{hidden} x {heads} heads x {head}"]
    else:
        rank = exact(mla.q_lora_rank)
        queries = [f"{hidden} x {rank}", f"{rank} x {heads} heads x {head}"]
    terms = [
        *queries,
        f"{hidden} x {mla.kv_lora_rank + mla.rope_head_dim} latent and rope",
        f"{mla.kv_lora_rank} latent x {heads} heads x {mla.nope_head_dim + value}",
        f"{heads} heads x {value} x {hidden}",
    ]
    words = "layers x (queries, to a latent vector, from it to keys and values, output)"
    return words, " + ".join(terms)


def weight_formulas(made: Plan) -> Iterator[Formula]:
    """Of the worst stage; of several ranks their own share, with what each of them repeats."""
    config, stage = made.config, made.ledger.stage
    held, part = rank_weights(config, stage), made.ledger.weights
    spread = config.parallelism
    ranks = f"; 1 of {spread.tensor} ranks" if spread.tensor > 1 else ""
    if spread.pipeline > 1:
        ranks += f"; pipeline stage {stage}"
    for name, share in shares(held).items():
        bits = 8 * share.bytes / share.parameters if share.parameters else 0.0
        yield Formula(
            WEIGHTS,
            name.replace("_", " "),
            f"parameters x bits / 8{ranks}",
            f"{exact(share.parameters)} x {bits:.12g} bits / 8",
            share.bytes,
            "bytes",
            "exact",
        )
    numbers = f"{exact(held.bytes)} bytes"
    if part.bytes != held.bytes:
        numbers += f" x {part.bytes / held.bytes:.9g} measured"
    yield Formula(
        WEIGHTS, "weights", "all parts", f"{numbers} / 2^30", part.bytes / GIB, "GiB", part.standing
    )


def shares(held: RankWeights) -> dict[str, Share]:
    return {
        part.name: getattr(held, part.name)
        for part in fields(held)
        if getattr(held, part.name).bytes
    }


def cache_formulas(made: Plan) -> Iterator[Formula]:
    config, layout = made.config, made.kv
    shape, tensor = config.model.shape, config.parallelism.tensor
    per_layer = layer_bytes_per_token(shape, config.kv.dtype, tensor)
    if shape.attention_layers:
        words, numbers = layer_of(made)
        yield Formula(CACHE, "a token in a layer", words, numbers, per_layer, "bytes", "exact")
    block_size, page = block_and_page(config)
    last = made.ledger.stage == config.parallelism.pipeline - 1
    drafted = drafted_bytes_per_token(config) * block_size if last else 0
    layers = (layout.bytes_per_block - drafted) // page
    inner = f"{exact(block_size)} tokens x {exact(per_layer)} bytes"
    if page != block_size * per_layer:
        inner = f"{exact(page)} bytes of a state"
    groups = "a group of layers" if len(layout.groups) > 1 else "layers"
    yield Formula(
        CACHE,
        "a block",
        f"{groups} x tokens of a block x a token in a layer" + (", and guesses" * bool(drafted)),
        f"{layers} layers x {inner}" + (f" + {exact(drafted)} of guesses" if drafted else ""),
        layout.bytes_per_block,
        "bytes",
        "exact",
    )
    if layout.bytes_per_token:
        yield marginal(made, layers if layout.uniform and not drafted else None)


def marginal(made: Plan, layers: int | None) -> Formula:
    """`layers` are those of the device where all keep every token."""
    layout, name = made.kv, "a token"
    if layers is not None:
        words, numbers = layer_of(made)
        factor, _, rest = numbers.partition("2 x ")
        numbers = f"{layers} layers x {numbers}" if factor else f"2 x {layers} layers x {rest}"
        words = f"layers x {words}"
    else:
        full = max(1, sum(group.kind == "full" for group in layout.groups))
        name = "one more token of a long request"
        words = "a block x groups that keep every token / tokens of a block"
        numbers = f"floor({exact(layout.bytes_per_block)} bytes x {full} / {layout.block_size})"
    return Formula(CACHE, name, words, numbers, layout.bytes_per_token, "bytes", "exact")


def layer_of(made: Plan) -> tuple[str, str]:
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
    heads, value = kv_heads_per_rank(shape, tensor), shape.value_head_dim or shape.head_dim
    spread = f" of {shape.kv_heads}, over {tensor} ranks" if tensor > 1 else ""
    words = f"keys and values x KV heads{spread} x head width x bytes"
    if plain and value == shape.head_dim:
        return words, f"2 x {heads} KV heads x {value} x {element} bytes"
    if plain:
        return words, f"{heads} KV heads x ({shape.head_dim} + {value}) x {element} bytes"
    key, val = head_bytes(dtype, shape.head_dim), head_bytes(dtype, value)
    return f"{words}, with scales", f"{heads} KV heads x ({short(key)} + {short(val)} bytes)"
