"""What single families have beside a decoder's parts: counted here, and named for the gate."""

from collections.abc import Callable

from servekit.config.architectures.family import Draft
from servekit.errors import ConfigError


def attention_gate(draft: Draft) -> None:
    """A gate as wide as the queries, from the same input."""
    if draft.values.get("attn_output_gate") is False:
        return
    draft.other += draft.attention_layers * draft.hidden * draft.query_width
    draft.note("an output gate in attention")


def head_gate(draft: Draft) -> None:
    """A gate of one number for each head."""
    draft.other += draft.attention_layers * draft.hidden * draft.tree["heads"]
    draft.note("an output gate in attention")


def other_sliding_queries(draft: Draft) -> None:
    """Sliding-window layers have query heads of another number (Step-3.5): with each a row of its
    gate, and the same keys and values.
    """
    tree, values = draft.tree, draft.values
    heads = values.inner("attention_other_setting").optional("num_attention_heads")
    heads = values.optional("num_sliding_attention_heads") or heads
    if heads and heads != tree["heads"]:
        sliding = sum(kind == "sliding" for kind in draft.kinds)
        each = draft.hidden * (2 * int(tree["head_dim"]) + 1)
        draft.other += sliding * each * (heads - int(tree["heads"]))
        draft.note("sliding-window layers with other query heads, computed as of the rest")


def wide_qk_norm(draft: Draft) -> None:
    """One norm over the queries of all heads together, and one over the keys."""
    if draft.values.get("use_qk_norm") is False or draft.values.get("qk_norm_type") == "per_head":
        return
    extra = draft.query_width + draft.key_width - 2 * draft.tree["head_dim"]
    draft.other += draft.attention_layers * extra
    draft.note("norms of queries and keys over all heads together")


def qk_norm_of_each_head(key: str) -> Callable[[Draft], None]:
    """LayerNorm without a bias, its weight another for each head, where `key` is true."""

    def read(draft: Draft) -> None:
        if draft.values.flag(key):
            draft.other += draft.attention_layers * (draft.query_width + draft.key_width)
            draft.note("LayerNorm of queries and keys")

    return read


def qk_norm_without_weights(draft: Draft) -> None:
    if draft.values.flag("use_qk_norm"):
        draft.note("norms of queries and keys without weights")


def head_bias(key: str | None = None) -> Callable[[Draft], None]:
    def read(draft: Draft) -> None:
        if key is None or draft.values.flag(key):
            draft.other += int(draft.tree["vocab_size"])
            draft.note("a bias of the head")

    return read


def sinks(*kinds: str) -> Callable[[Draft], None]:
    """A number for each head that takes part in the softmax, in layers of these kinds."""

    def read(draft: Draft) -> None:
        layers = sum(kind in kinds for kind in draft.kinds)
        draft.other += layers * int(draft.tree["heads"])
        draft.note("attention sinks")

    return read


def indexer(draft: Draft) -> None:
    """Chooses the tokens that latent attention reads (DeepSeek-V3.2). GLM-5.2 has one in some of
    its layers only, by a list or a rule; the others take what the one before them chose.
    """
    values, mla = draft.values, draft.tree["mla"]
    if mla is None:
        return
    every, first = values.count_or(1, "index_topk_freq"), 2
    if values.found("index_skip_topk_offset"):
        first = values.size("index_skip_topk_offset")
    layers = [layer for layer in range(draft.layers) if max(layer - first + 1, 0) % every == 0]
    marks = values.each("indexer_types", draft.layers) or values.word("index_topk_pattern")
    if marks:
        layers = [layer for layer, mark in enumerate(marks) if mark in ("full", "F")]
    mla["indexer"] = {
        "heads": values.count("index_n_heads"),
        "head_dim": values.count("index_head_dim"),
        "top_k": values.count_or(2048, "index_topk"),
        "layers": layers,
    }


def block_indexer(draft: Draft) -> None:
    """Chooses blocks of keys (MiniMax-M3): a few normed queries and one normed key a token."""
    sparse = draft.values.inner("sparse_attention_config")
    if not sparse.tree:
        return
    heads, width = sparse.count("sparse_num_index_heads"), sparse.count("sparse_index_dim")
    marks = sparse.each("sparse_attention_freq", draft.layers) or [1] * draft.layers
    layers = sum(bool(mark) for mark in marks)
    draft.other += layers * (draft.hidden * (heads + 1) * width + 2 * width)


def latent_positions_and_gate(draft: Draft) -> None:
    if draft.values.tree.get("mla_use_nope"):
        draft.note("attention without positions")
        draft.tree["rope"] = {"kind": "other"}
    if draft.values.flag("mla_use_output_gate"):
        draft.other += (
            draft.attention_layers
            * draft.hidden
            * int(draft.tree["heads"] * draft.tree["value_head_dim"])
        )
        draft.note("an output gate in attention")


def no_positions(draft: Draft) -> None:
    """Layers without rotary embeddings, where the file or the family has some."""
    marks = draft.values.get("no_rope_layers")
    every = draft.values.get("no_rope_layer_interval")
    if (isinstance(marks, list) and 0 in marks) or (not marks and every):
        draft.note("layers without positions")


def falcon(draft: Draft) -> None:
    """One key and value head, or groups of them in the newer of its two decoders."""
    values, tree = draft.values, draft.tree
    newer = values.flag("new_decoder_architecture")
    if not newer:
        several = values.tree.get("multi_query") is False
        tree["kv_heads"] = tree["heads"] if several else 1
    parallel = newer or values.tree.get("parallel_attn") is not False
    norms = 2 if newer and values.get("num_ln_in_parallel_attn") != 1 else 1
    draft.other += draft.layers * draft.hidden * 2 * ((norms if parallel else 2) - 1)
    draft.note("attention and MLP side by side" if parallel else "LayerNorm")
    if values.flag("alibi"):
        draft.note("ALiBi")
        tree["rope"] = {"kind": "other"}


def stablelm(draft: Draft) -> None:
    if draft.values.flag("use_parallel_residual"):
        draft.other -= draft.layers * draft.hidden * 2
        draft.note("attention and MLP side by side")


def short_convolutions(draft: Draft) -> None:
    """Gated convolutions over a few tokens (LFM2): three projections in, one out."""
    layers = sum(kind == "none" for kind in draft.kinds)
    taps, hidden = draft.values.count("conv_L_cache"), draft.hidden
    bias = 4 * hidden + hidden if draft.values.flag("conv_bias") else 0
    draft.other += layers * (4 * hidden * hidden + taps * hidden + bias + hidden)
    if layers:
        draft.note("short convolutions, held in 16 bits and not cut among ranks")


def lfm2_width(draft: Draft) -> None:
    """Two thirds of the width that is given, rounded up, where the file says so."""
    values = draft.values
    if not values.flag("block_auto_adjust_ff_dim"):
        return
    width = 2 * draft.tree["intermediate_size"] // 3
    width = int(values.number(1.0, "block_ffn_dim_multiplier") * width)
    multiple = values.count_or(256, "block_multiple_of")
    draft.tree["intermediate_size"] = -(-width // multiple) * multiple


def only_mixers(draft: Draft) -> None:
    """A Mamba model: no attention, and no MLP."""
    draft.tree["mixer_only_layers"] = list(range(draft.layers))


def one_part_a_layer(draft: Draft) -> None:
    """Each layer is a mixer, an MLP or experts (Nemotron-H)."""
    tree = draft.tree
    mixers = [layer for layer, kind in enumerate(draft.kinds) if kind != "none"]
    tree["mixer_only_layers"] = mixers
    if (moe := tree["moe"]) is not None:
        names = draft.part_names
        moe["dense_layers"] = [layer for layer, name in enumerate(names) if name == "mlp"]


def sub_norms(draft: Draft) -> None:
    """Norms inside attention and MLP, before their last projections (BitNet)."""
    draft.other += draft.layers * (draft.query_width + int(draft.tree["intermediate_size"]))


def learned_activation(draft: Draft) -> None:
    draft.other += 2 * draft.layers


def cross_attention(draft: Draft) -> None:
    """Layers that look at the image: norms of queries and keys, two gates (Llama 3.2 Vision)."""
    layers = len(draft.values.numbers("cross_attention_layers"))
    draft.other += layers * (2 * int(draft.tree["head_dim"]) + 2) + 8 * draft.hidden
    draft.note("attention to images")


def other_sliding_heads(draft: Draft) -> None:
    """Sliding-window layers have key and value heads of their own (MiMo-V2-Flash)."""
    values, tree = draft.values, draft.tree
    if "sliding" not in draft.kinds:
        return
    heads, width = int(tree["kv_heads"]), int(tree["head_dim"])
    value = tree["value_head_dim"]
    tree |= {
        "kv_heads": values.count_or(2 * heads, "swa_num_key_value_heads"),
        "full_kv_heads": heads,
        "head_dim": values.count_or(width, "swa_head_dim"),
        "full_head_dim": width,
    }
    if (own := values.count_or(value or width, "swa_v_head_dim")) != (value or width):
        raise ConfigError(
            f"swa_v_head_dim ({own}) must be v_head_dim ({value or width}); write model.shape by "
            "hand as the nearest model that is"
        )
