"""What single families have beside a decoder's parts: counted here, and named for the gate."""

from collections.abc import Callable

from servekit.config.architectures.family import Draft


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
    """Chooses the tokens that latent attention reads (DeepSeek-V3.2): queries from the compressed
    ones, one key a token with a LayerNorm, a weight for each of its heads.
    """
    values = draft.values
    heads, width = values.count("index_n_heads"), values.count("index_head_dim")
    types = values.get("indexer_types")
    layers = draft.layers
    if types is not None:
        layers = sum(kind == "full" for kind in values.each("indexer_types", draft.layers) or [])
    queries = values.count("q_lora_rank") * heads * width
    draft.other += layers * (queries + draft.hidden * (width + heads) + 2 * width)
    draft.note("an indexer that chooses the tokens attention reads; its keys are not in the cache")


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
    """Sliding-window layers have key and value heads of their own (MiMo-V2-Flash).

    Those of full attention are planned with: the window is short, so that they are nearly all.
    """
    values, tree = draft.values, draft.tree
    head_dim, heads = int(tree["head_dim"]), int(tree["kv_heads"])
    value = int(tree["value_head_dim"] or head_dim)
    own = values.count_or(2 * heads, "swa_num_key_value_heads") * (
        values.count_or(head_dim, "swa_head_dim") + values.count_or(value, "swa_v_head_dim")
    )
    sliding = sum(kind == "sliding" for kind in draft.kinds)
    extra = own - heads * (head_dim + value)
    if extra:
        draft.other += sliding * draft.hidden * extra
        draft.note("sliding-window layers with other key and value heads, planned as of the rest")
