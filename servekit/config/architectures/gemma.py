"""What Gemma 3n and Gemma 4 have beside the decoder of Gemma 3."""

from servekit.config.architectures.family import Draft


def shared_caches(draft: Draft) -> None:
    """The last layers read keys and values of the last layer of their kind before them."""
    shared = draft.values.size("num_kv_shared_layers")
    first = max(0, draft.layers - shared)
    draft.tree["shared_kv_layers"] = list(range(first, draft.layers)) if first else []


def layer_inputs(draft: Draft) -> None:
    """An embedding of its own for each layer, gated into the residual stream at its end."""
    width = draft.values.size("hidden_size_per_layer_input")
    if not width:
        return
    rows = draft.values.count_or(draft.tree["vocab_size"], "vocab_size_per_layer_input")
    every, hidden = draft.layers * width, draft.hidden
    draft.other += rows * every + hidden * every + width
    draft.other += draft.layers * (2 * hidden * width + hidden)
    draft.note("an embedding for each layer")


def alternating_updates(draft: Draft) -> None:
    """Gemma 3n: several residual streams, and a low-rank path beside attention."""
    values, hidden = draft.values, draft.hidden
    streams, rank = values.count("altup_num_inputs"), values.count("laurel_rank")
    draft.other += 2 * (streams - 1) * hidden * hidden
    mixing = streams * streams + streams**3 + streams * hidden + 2 * hidden
    draft.other += draft.layers * (mixing + 2 * hidden * rank + hidden)
    draft.note("alternating updates")


def wide_full_layers(draft: Draft) -> None:
    """Gemma 4: full-attention layers have heads of another width, and keys may be the values."""
    values, tree = draft.values, draft.tree
    tree["full_head_dim"] = values.count_or(512, "global_head_dim")
    tree["full_keys_are_values"] = values.flag("attention_k_eq_v")
    if tree["full_keys_are_values"]:
        tree["full_kv_heads"] = values.optional("num_global_key_value_heads")


def dense_beside_experts(draft: Draft) -> None:
    """Gemma 4: the MLP stays, beside the experts, with norms for each of the two."""
    values, tree = draft.values, draft.tree
    if not values.flag("enable_moe_block"):
        tree["moe"] = None
    elif tree["moe"] is not None:
        tree["moe"]["shared_intermediate_size"] = tree["intermediate_size"]
        tree["moe"]["dense_layers"] = []
        draft.other += draft.layers * (3 * draft.hidden + draft.hidden + tree["moe"]["experts"])
        draft.note("an MLP beside the experts")
    if values.flag("use_double_wide_mlp"):
        shared = len(tree["shared_kv_layers"])
        draft.other += shared * 3 * draft.hidden * int(tree["intermediate_size"])
        draft.note("MLPs of different widths")
