"""Parameters and weights, as formulas."""

from collections.abc import Iterator
from dataclasses import fields

from servekit.config.parts import Mla
from servekit.config.shape import Shape
from servekit.planner.pages.formula import Formula, exact
from servekit.planner.plan import Plan
from servekit.spec.model import (
    GIB,
    PARTS,
    RankWeights,
    Share,
    parameters,
    rank_weights,
)

MODEL, WEIGHTS = "Parameters of the model", "Weights of one device"


def model_formulas(made: Plan) -> Iterator[Formula]:
    yield from parameter_formulas(made.config.model.shape)
    yield from weight_formulas(made)


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
        yield from attention_formulas(shape, counts.attention)
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


def attention_formulas(shape: Shape, total: int) -> Iterator[Formula]:
    """One, or where layers differ one for each kind, and for an indexer, and their sum."""
    parts = [
        (name, words, f"{layers} layers x ({each})")
        for name, layers, (words, each) in attention_parts(shape)
        if layers
    ]
    if len(parts) == 1:
        yield product("attention", *parts[0][1:], total)
        return
    sizes = {name: round(evaluate(numbers)) for name, _, numbers in parts}
    for name, words, numbers in parts:
        yield product(name, words, numbers, sizes[name])
    numbers = " + ".join(exact(size) for size in sizes.values())
    if rest := total - sum(sizes.values()):
        numbers += f" + {exact(rest)} of biases"
    yield Formula(MODEL, "attention", "all of these", numbers, total, "parameters", "exact")


def attention_parts(shape: Shape) -> Iterator[tuple[str, int, tuple[str, str]]]:
    """Name, layers, and one layer in words and in numbers."""
    layers = shape.attention_layers
    if shape.mla is not None:
        yield "latent attention", len(layers), latent_attention_of(shape, shape.mla)
        yield "indexer", len(shape.indexed_layers), indexer_in(shape)
        return
    full = sum(shape.window(layer) is None for layer in layers) if shape.has_two_kinds else 0
    yield "attention that slides", len(layers) - full, attention_of(shape, full=False)
    yield "attention that sees everything", full, attention_of(shape, full=True)


def attention_of(shape: Shape, *, full: bool) -> tuple[str, str]:
    """Of one layer, in words and in numbers."""
    hidden, sizes = exact(shape.hidden_size), shape.heads_of(full=full)
    terms = [
        f"{hidden} x {shape.heads} heads x {sizes.head_dim}",
        f"{hidden} x {sizes.kv_heads} KV heads x {sizes.head_dim}",
        f"{hidden} x {sizes.kv_heads} KV heads x {sizes.value_head_dim}",
        f"{shape.heads} heads x {sizes.value_head_dim} x {hidden}",
    ]
    if full and shape.full_keys_are_values:
        del terms[2]
        return "layers x (queries + keys, which are the values + output)", " + ".join(terms)
    return "layers x (queries + keys + values + output)", " + ".join(terms)


def indexer_in(shape: Shape) -> tuple[str, str]:
    found, hidden = shape.indexer, exact(shape.hidden_size)
    if found is None or shape.mla is None:
        return "", ""
    rank = exact(shape.mla.q_lora_rank or shape.hidden_size)
    terms = f"{rank} x {found.heads} heads x {found.head_dim} + {hidden} x {found.head_dim}"
    return "layers x (queries + key + weights of heads)", f"{terms} + {hidden} x {found.heads}"


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
