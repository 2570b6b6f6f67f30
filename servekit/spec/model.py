"""What a shape weighs: parameters, bytes of weights on a device, bytes of keys and values.

All of it is exact arithmetic on `Shape`. The linears are those of one Llama-like decoder layer:
query, key, value and output projections, and the gate, up and down of a gated MLP.
"""

from dataclasses import dataclass

from servekit.config.base import DTYPE_BYTES, Dtype
from servekit.config.shape import Shape

GIB = 1024**3
VOCAB_ALIGNMENT = 64
"""Rows that the vocabulary of each tensor-parallel rank is padded to a multiple of."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of one decoder; `attention`, `mlp` and `norms` are of all layers together.

    `head` is 0 where it is the embedding itself; `norms` has the final norm too.
    """

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.norms + self.head


def ceil_div(amount: int, unit: int) -> int:
    return -(-amount // unit)


def kv_heads_per_rank(shape: Shape, tensor: int) -> int:
    """Key and value heads that one rank holds: with more ranks than heads they are replicated."""
    return max(1, shape.kv_heads // tensor)


def vocab_rows_per_rank(shape: Shape, tensor: int) -> int:
    """Rows of embedding and head on one rank; padded only where they are shared out."""
    if tensor == 1:
        return shape.vocab_size
    return ceil_div(shape.vocab_size, VOCAB_ALIGNMENT * tensor) * VOCAB_ALIGNMENT


def attention_parameters(shape: Shape, tensor: int = 1) -> int:
    """Weights and biases of one layer's four projections on one rank."""
    queries = shape.heads // tensor * shape.head_dim
    keys_and_values = 2 * kv_heads_per_rank(shape, tensor) * shape.head_dim
    weights = shape.hidden_size * (queries + keys_and_values) + queries * shape.hidden_size
    input_bias = queries + keys_and_values if shape.qkv_bias else 0
    output_bias = shape.hidden_size if shape.output_bias else 0
    return weights + input_bias + output_bias


def mlp_parameters(shape: Shape, tensor: int = 1) -> int:
    """Weights and biases of one layer's gate, up and down projections on one rank."""
    width = ceil_div(shape.intermediate_size, tensor)
    bias = 2 * width + shape.hidden_size if shape.mlp_bias else 0
    return 3 * shape.hidden_size * width + bias


def norm_parameters(shape: Shape) -> int:
    """Of one layer; every rank holds them all."""
    norms = 4 if shape.post_norms else 2
    return norms * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)


def parameters(shape: Shape, tensor: int = 1) -> Parameters:
    """What one of `tensor` ranks holds; with one rank, the published count of the model."""
    table = vocab_rows_per_rank(shape, tensor) * shape.hidden_size
    return Parameters(
        embedding=table,
        attention=shape.layers * attention_parameters(shape, tensor),
        mlp=shape.layers * mlp_parameters(shape, tensor),
        norms=shape.layers * norm_parameters(shape) + shape.hidden_size,
        head=0 if shape.tie_word_embeddings else table,
    )


def weights_bytes(shape: Shape, dtype: Dtype, tensor: int = 1) -> int:
    """Weights as the decoder of one rank holds them, in `dtype` but for two exceptions.

    Norms with a unit offset are float32, with the 1 added; norms of queries and keys have a row for
    each head.
    """
    counts = parameters(shape, tensor)
    linears = counts.total - counts.norms
    heads = shape.heads // tensor + kv_heads_per_rank(shape, tensor)
    repeated = shape.layers * (heads - 2) * shape.head_dim if shape.qk_norm else 0
    norm_bytes = 4 if shape.norm_unit_offset else DTYPE_BYTES[dtype]
    return linears * DTYPE_BYTES[dtype] + (counts.norms + repeated) * norm_bytes


def kv_bytes_per_token(shape: Shape, dtype: Dtype, tensor: int = 1) -> int:
    """Keys and values of one token on one rank: 2 x layers x KV heads x head_dim x bytes.

    Sliding-window layers count like the others: they are stored at full length.
    """
    width = kv_heads_per_rank(shape, tensor) * shape.head_dim
    return 2 * shape.layers * width * DTYPE_BYTES[dtype]
