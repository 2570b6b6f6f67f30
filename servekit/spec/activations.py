"""What a step at its limits holds besides weights and cache.

On a CPU it is counted in the decoder of this release. On a GPU it follows a fit to published
start-up logs of vLLM 0.17 to 0.19 on H100, within 8 %; what the reference attention and sampler of
this release hold beyond that is counted apart, as `workspace_bytes`.
"""

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config
from servekit.config.shape import Shape
from servekit.spec.decodable import beyond_the_decoder
from servekit.spec.formats import FORMATS
from servekit.spec.layer_blocks import head_bytes
from servekit.spec.model import VOCAB_ALIGNMENT, kv_heads_per_rank, stage_layers
from servekit.spec.tensors import ceil_div

GATHER_TOKENS = 65536
"""Most context tokens whose keys and values the reference attention copies together; one request
longer than this is copied whole."""

SAMPLER_COPIES = 10
"""Float32 copies of the logits alive at once in the sampler of this release, at worst: raw,
penalised, scaled, probabilities, the same sorted with their int64 places (three), their running
sum, and two temporaries."""

FUSED_SAMPLER_COPIES = 3.75
"""The same of the engine that the fit is of."""

INDEX_BYTES = 8
"""Of a place in a tensor."""

RESIDUAL_WIDTHS = 4.26
"""Rows as wide as the residual stream that are alive in a forward pass of a GPU."""

STAGE_RESIDUAL_WIDTHS = 6.8
"""The same in a stage that hands its residual stream to another."""


def activation_bytes(config: Config, stage: int = 0) -> int:
    """The peak of one rank of a stage in one step of as many tokens and requests as there may be.

    Either the decoder or the sampler after it sets the peak, for they are not alive together.
    """
    if config.hardware.kind == "cpu":
        return reference_peak(config, stage)
    shape, parallelism = config.model.shape, config.parallelism
    tokens, element = config.scheduler.max_num_batched_tokens, DTYPE_BYTES[config.model.dtype]
    last = stage == parallelism.pipeline - 1
    widths = RESIDUAL_WIDTHS if last else STAGE_RESIDUAL_WIDTHS
    width = dense_width(config, stage) / parallelism.tensor
    copies = element * (3 if shape.gated_mlp else 2) + quantized_copy(config)
    experts = expert_workspace(config, stage)
    forward = tokens * (copies * width + element * widths * shape.hidden_size) + experts
    if not last:
        return int(forward)
    logits = FUSED_SAMPLER_COPIES * sampled_rows(config) * sampled_columns(shape) * 4
    return int(max(forward, logits + element * tokens * shape.hidden_size + experts))


def quantized_copy(config: Config) -> int:
    """Bytes of each input of a product that is held a second time, rounded to eight bits."""
    return int(FORMATS[config.quantization.weights].compute in ("fp8", "int8"))


def sampled_rows(config: Config) -> int:
    """Rows of logits in one step: of each request its next token and those after its guesses."""
    limits = config.scheduler
    rows = limits.max_num_seqs * (1 + config.speculative.tokens)
    return min(rows, max(limits.max_num_seqs, limits.max_num_batched_tokens))


def sampled_columns(shape: Shape) -> int:
    """The vocabulary, padded."""
    return ceil_div(shape.vocab_size, VOCAB_ALIGNMENT) * VOCAB_ALIGNMENT


def dense_width(config: Config, stage: int) -> int:
    """Of the MLPs in a stage; 0 where it has experts only."""
    shape = config.model.shape
    here = stage_layers(shape.layers, config.parallelism.pipeline)[stage]
    return shape.intermediate_size if any(layer in here for layer in shape.dense_layers) else 0


def expert_workspace(config: Config, stage: int) -> int:
    """Every token's row for each of its experts: gate and up, or output, and their product.

    None where a stage has no experts, or their kernel keeps no such rows, as that of mxfp4.
    """
    shape, parallelism = config.model.shape, config.parallelism
    here = stage_layers(shape.layers, parallelism.pipeline)[stage]
    with_experts = any(layer in here for layer in shape.moe_layers)
    if shape.moe is None or not with_experts or config.quantization.weights == "mxfp4":
        return 0
    width = ceil_div(shape.moe.intermediate_size, parallelism.expert_tensor)
    rows = config.scheduler.max_num_batched_tokens * shape.moe.experts_per_token
    element = DTYPE_BYTES[config.model.dtype]
    return element * rows * (max(2 * width, shape.hidden_size) + width)


def workspace_bytes(config: Config, stage: int = 0) -> int:
    """What this release would hold on a GPU beyond `activation_bytes`; fused kernels will not.

    Copies of cached keys and values, masks, places in the cache and more copies of the logits. Only
    models that its decoder can run have any.
    """
    if config.hardware.kind == "cpu" or beyond_the_decoder(config.model.shape):
        return 0
    return max(0, reference_peak(config, stage) - activation_bytes(config, stage))


def reference_peak(config: Config, stage: int = 0) -> int:
    """The most that the decoder of this release holds, or the sampler after its last stage.

    In the decoder the residual stream and what the attention of all layers shares stay beside the
    larger of attention and MLP.
    """
    stream = config.scheduler.max_num_batched_tokens * config.model.shape.hidden_size
    resident = stream * DTYPE_BYTES[config.model.dtype] + shared_attention_bytes(config)
    decoder = resident + max(attention_bytes(config), mlp_bytes(config))
    last = stage == config.parallelism.pipeline - 1
    return max(decoder, sampler_bytes(config) if last else 0)


def shared_attention_bytes(config: Config) -> int:
    """Room for keys and values gathered from the cache; slots of all contexts; masks.

    Slots (int64) and a mask of new tokens by positions are made for each kind of layer, full and
    sliding-window; the mask is two booleans and a value while it is made.
    """
    shape, element = config.model.shape, DTYPE_BYTES[config.model.dtype]
    tokens, longest = config.scheduler.max_num_batched_tokens, config.model.max_model_len
    kinds = len({shape.window(layer) for layer in range(shape.layers)})
    masks = kinds * tokens * longest * (element + 2)
    slots = kinds * config.scheduler.max_num_seqs * longest * 8
    return masks + slots + gathered_bytes(config)


def attention_bytes(config: Config) -> int:
    """Normed input, queries, keys and values before and after rope, output; and their norm.

    Scores, too, where a soft cap keeps them from being fused: three float32 copies.
    """
    shape = config.model.shape
    tokens = config.scheduler.max_num_batched_tokens
    heads = shape.heads // config.parallelism.tensor
    widest = 0
    for full in (False, True):
        kv_heads = kv_heads_per_rank(shape, config.parallelism.tensor, full=full)
        head_dim = shape.heads_of(full=full).head_dim
        widest = max(widest, (6 * heads + 5 * kv_heads) * head_dim)
    rows = tokens * (2 * shape.hidden_size + widest) * DTYPE_BYTES[config.model.dtype]
    norm = tokens * shape.hidden_size * 4
    softcap = shape.attention_logit_softcap is not None
    scores = 3 * heads * tokens * config.model.max_model_len * 4 if softcap else 0
    return rows + norm + scores


def gathered_bytes(config: Config) -> int:
    """Copies of cached keys and values, for as many requests at once as `GATHER_TOKENS` allows.

    Copied again where the cache has another dtype than the model, and on a GPU with each key head
    repeated for its query heads, which its fused kernels want.
    """
    shape, element = config.model.shape, DTYPE_BYTES[config.model.dtype]
    tensor, longest = config.parallelism.tensor, config.model.max_model_len
    tokens = min(config.scheduler.max_num_seqs * longest, max(longest, GATHER_TOKENS))
    most = 0
    for full in (False, True):
        kv_heads = kv_heads_per_rank(shape, tensor, full=full)
        head_dim = shape.heads_of(full=full).head_dim
        copied = kv_heads * head_bytes(config.kv.dtype, head_dim)
        if config.kv.dtype != config.model.dtype:
            copied += kv_heads * head_dim * element
        if config.hardware.kind != "cpu":
            copied += shape.heads // tensor * head_dim * element
        most = max(most, copied)
    return tokens * 2 * most


def mlp_bytes(config: Config) -> int:
    """The most of a layer's MLP or experts, with its normed input and its output."""
    shape, tokens = config.model.shape, config.scheduler.max_num_batched_tokens
    element, moe = DTYPE_BYTES[config.model.dtype], config.model.shape.moe
    wide = shape.intermediate_size if shape.dense_layers else 0
    if moe is not None:
        wide = max(wide, moe.shared_intermediate_size)
    width = ceil_div(wide, config.parallelism.tensor)
    inner = max(4 * width * element, expert_bytes_per_token(config) if shape.moe_layers else 0)
    return tokens * (shape.hidden_size * (2 * element + 4) + inner)


def expert_bytes_per_token(config: Config) -> int:
    """A result and its places for each expert of a token, and beside them more of one expert, to
    which all tokens may go, or the weighted sum.

    One expert has its tokens' rows twice, gate and up together, the activated gate and its product,
    or its own result; the sum and what is added to it are float32.
    """
    shape, moe = config.model.shape, config.model.shape.moe
    assert moe is not None, "a shape with experts"
    hidden, element = shape.hidden_size, DTYPE_BYTES[config.model.dtype]
    width = ceil_div(moe.intermediate_size, config.parallelism.expert_tensor)
    results = moe.experts_per_token * (hidden * element + 3 * INDEX_BYTES)
    one = element * (2 * hidden + max(3 * width, width + hidden))
    return results + max(one, hidden * (8 + element))


def sampler_bytes(config: Config) -> int:
    """Logits of every running request over the whole vocabulary, in float32, and their copies."""
    return config.scheduler.max_num_seqs * config.model.shape.vocab_size * 4 * SAMPLER_COPIES
