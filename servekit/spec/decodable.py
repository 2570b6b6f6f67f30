"""Which shapes the decoder of this release runs; the others are for the planner alone."""

from servekit.config.shape import Shape


def beyond_the_decoder(shape: Shape) -> list[str]:
    """What a model computes and the decoder of this release does not."""
    ropes = [rope for rope in (shape.rope, shape.local_rope) if rope is not None]
    windowed, moe = shape.sliding_window is not None, shape.moe
    facts = {
        "latent attention": shape.mla is not None,
        "an indexer that chooses what attention reads": shape.indexer is not None,
        "experts chosen in another way": moe is not None and moe.router == "other",
        "a router with a bias": moe is not None and moe.router == "softmax" and moe.router_bias,
        "experts with biases": moe is not None and moe.expert_bias,
        "layers with a state": shape.state is not None,
        "chunked attention": windowed and shape.window_kind == "chunked",
        "layers that share keys and values": bool(shape.shared_kv_layers),
        "layers without attention": bool(shape.mlp_only_layers),
        "layers without an MLP": bool(shape.mixer_only_layers),
        "full-attention layers with other keys and values": shape.has_two_kinds,
        "an MLP without a gate": not shape.gated_mlp,
        "value heads of their own width": shape.value_head_dim not in (None, shape.head_dim),
        "another activation": shape.activation == "other",
        "another rotary embedding": any(rope.kind == "other" for rope in ropes),
    }
    return [name for name, true in facts.items() if true] + list(shape.planned_only)
