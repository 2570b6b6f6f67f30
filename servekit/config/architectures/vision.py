"""Parameters of vision towers, from the numbers under `vision_config`."""

from collections.abc import Callable

from servekit.config.architectures.values import Values


def encoder_layer(
    hidden: int, width: int, *, matrices: int = 2, biases: bool = True, norms: int = 4
) -> int:
    """Four projections of attention, an MLP of two matrices or a gated one of three."""
    weights = 4 * hidden * hidden + matrices * hidden * width + norms * hidden
    return weights + (4 * hidden + (matrices - 1) * width + hidden if biases else 0)


def layers_and_width(tower: Values) -> tuple[int, int] | None:
    """None where its numbers are not there under any usual name."""
    layers = tower.optional("num_hidden_layers", "depth", "vt_num_hidden_layers", "layers")
    width = tower.optional("embed_dim", "vt_hidden_size", "hidden_size", "width")
    return (layers, width) if layers and width else None


def estimated(tower: Values) -> int:
    """An encoder of that depth and width, its MLP four times as wide where it does not say."""
    layers, hidden = layers_and_width(tower) or (0, 0)
    width = tower.count_or(4 * hidden, "intermediate_size", "vt_intermediate_size")
    return layers * encoder_layer(hidden, width)


def patches(tower: Values, hidden: int, *, frames: int = 1) -> int:
    """The convolution that makes tokens of patches, without its bias."""
    patch = _side(tower, "patch_size", 14)
    return tower.count_or(3, "in_channels", "num_channels") * frames * patch * patch * hidden


def places(tower: Values) -> int:
    return (_side(tower, "image_size", 224) // _side(tower, "patch_size", 14)) ** 2


def _side(tower: Values, key: str, otherwise: int) -> int:
    value = tower.get(key)
    if isinstance(value, list | tuple) and value:
        return max(1, tower.numbers(key)[0])
    return tower.count_or(otherwise, key)


def _encoder(tower: Values) -> tuple[int, int, int]:
    layers = tower.count("num_hidden_layers", "depth", "vt_num_hidden_layers")
    hidden = tower.count("vt_hidden_size", "hidden_size")
    return layers, hidden, tower.count("intermediate_size", "vt_intermediate_size")


def siglip(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    whole = layers * encoder_layer(hidden, width) + patches(tower, hidden) + hidden
    whole += places(tower) * hidden + 2 * hidden
    if tower.tree.get("vision_use_head") is not False:
        whole += hidden + encoder_layer(hidden, width, norms=2)
    return whole


def clip(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    whole = layers * encoder_layer(hidden, width) + patches(tower, hidden)
    return whole + (places(tower) + 2) * hidden + 4 * hidden


def pixtral(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    layer = encoder_layer(hidden, width, matrices=3, biases=False, norms=2)
    return layers * layer + patches(tower, hidden) + hidden


def qwen2(tower: Values, text: int) -> int:
    hidden = tower.count("embed_dim")
    layer = encoder_layer(hidden, int(hidden * tower.number(4.0, "mlp_ratio")))
    merged = hidden * tower.count_or(2, "spatial_merge_size") ** 2
    out = tower.count("hidden_size")
    frames = _side(tower, "temporal_patch_size", 2)
    merger = 2 * hidden + merged * merged + merged + merged * out + out
    return tower.count("depth") * layer + patches(tower, hidden, frames=frames) + merger


def qwen2_5(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    merged = hidden * tower.count_or(2, "spatial_merge_size") ** 2
    out = tower.count("out_hidden_size")
    frames = _side(tower, "temporal_patch_size", 2)
    merger = hidden + merged * merged + merged + merged * out + out
    layer = encoder_layer(hidden, width, matrices=3, norms=2)
    return layers * layer + patches(tower, hidden, frames=frames) + merger


def qwen3(tower: Values, text: int) -> int:
    """Mergers also of some layers on the way (DeepStack), their norm over merged patches."""
    layers, hidden, width = _encoder(tower)
    merged = hidden * tower.count_or(2, "spatial_merge_size") ** 2
    out = tower.count("out_hidden_size")
    frames = _side(tower, "temporal_patch_size", 2)
    merger = merged * merged + merged + merged * out + out
    mergers = merger + 2 * hidden
    mergers += len(tower.numbers("deepstack_visual_indexes")) * (merger + 2 * merged)
    positions = tower.count("num_position_embeddings") * hidden
    whole = layers * encoder_layer(hidden, width) + patches(tower, hidden, frames=frames)
    return whole + hidden + positions + mergers


def moonvit(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    rows = tower.count_or(64, "init_pos_emb_height", "pos_emb_height")
    columns = tower.count_or(64, "init_pos_emb_width", "pos_emb_width")
    sides = tower.numbers("merge_kernel_size") or [2, 2]
    merged = hidden * sides[0] * sides[-1]
    projector = 2 * hidden + merged * merged + merged + merged * text + text
    whole = layers * encoder_layer(hidden, width) + patches(tower, hidden) + hidden
    return whole + rows * columns * hidden + 2 * hidden + projector


def llama4(tower: Values, text: int) -> int:
    layers, hidden, _ = _encoder(tower)
    merged = tower.count("intermediate_size")
    into, out = tower.count("projector_input_dim"), tower.count("projector_output_dim")
    whole = layers * encoder_layer(hidden, merged) + patches(tower, hidden)
    whole += (places(tower) + 2) * hidden + 4 * hidden
    return whole + merged * into + into * out + tower.count("vision_output_dim") * text


def mllama(tower: Values, text: int) -> int:
    """Two encoders, the second with gates; embeddings of the arrangement of tiles."""
    layers, hidden, width = _encoder(tower)
    more = tower.count("num_global_layers")
    layer = encoder_layer(hidden, width) - 4 * hidden
    tiles = tower.count("max_num_tiles")
    ratios = tower.tree.get("supported_aspect_ratios")
    kinds = (len(ratios) if isinstance(ratios, list) else 8) + 1
    positions = (places(tower) + 1) * hidden
    whole = (layers + more) * layer + 2 * more + patches(tower, hidden) + hidden + 4 * hidden
    whole += positions + 1 + kinds * tiles * positions + 2 * (kinds * tiles * hidden + 1)
    return whole + tower.count("vision_output_dim") * text + text


def glm4v(tower: Values, text: int) -> int:
    layers = tower.count("depth", "num_hidden_layers")
    hidden, width = tower.count("hidden_size"), tower.count("intermediate_size")
    out = tower.count("out_hidden_size")
    layer = encoder_layer(hidden, out, matrices=3, biases=False, norms=2)
    frames, merge = _side(tower, "temporal_patch_size", 2), tower.count("spatial_merge_size")
    whole = layers * layer + patches(tower, hidden, frames=frames) + hidden
    whole += places(tower) * hidden + 2 * hidden + out * hidden * merge * merge + out
    return whole + out * out + 2 * out + 3 * out * width


def internvl(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    layer = encoder_layer(hidden, width) - 3 * hidden + 2 * hidden
    if tower.flag("attention_bias"):
        layer += 3 * hidden
    if tower.flag("use_qk_norm"):
        layer += 2 * hidden
    return layers * layer + patches(tower, hidden) + hidden + (places(tower) + 2) * hidden


def idefics3(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    whole = layers * encoder_layer(hidden, width) + patches(tower, hidden) + hidden
    return whole + places(tower) * hidden + 2 * hidden


def minimax(tower: Values, text: int) -> int:
    layers, hidden, width = _encoder(tower)
    frames = _side(tower, "temporal_patch_size", 2)
    whole = layers * encoder_layer(hidden, width) + patches(tower, hidden, frames=frames)
    merged = tower.count_or(2, "spatial_merge_size") ** 2 * text
    projector = hidden * text + text + text * text + text
    return whole + 2 * hidden + projector + merged * text + text + text * text + text


def step(tower: Values, text: int) -> int:
    """Two convolutions of 3 x 3 after it, each to twice the width."""
    layers, hidden, width = _encoder(tower)
    whole = layers * (encoder_layer(hidden, width) + 2 * hidden) + patches(tower, hidden)
    whole += places(tower) * hidden + 2 * hidden
    return whole + 9 * 2 * hidden * hidden + 2 * hidden + 9 * 8 * hidden * hidden + 4 * hidden


def gemma4(tower: Values, text: int) -> int:
    """Gated MLPs, norms before and after, of queries and keys; a table of places for each axis."""
    layers, hidden, width = _encoder(tower)
    head_dim = tower.count("head_dim")
    queries = tower.count("num_attention_heads") * head_dim
    keys = tower.count("num_key_value_heads") * head_dim
    layer = 2 * hidden * (queries + keys) + 3 * hidden * width + 4 * hidden + 2 * head_dim
    whole = layers * layer + patches(tower, hidden)
    return whole + 2 * tower.count("position_embedding_size") * hidden


TOWERS: dict[str, Callable[[Values, int], int]] = {
    "siglip_vision_model": siglip,
    "clip_vision_model": clip,
    "pixtral": pixtral,
    "qwen2_vl_vision": qwen2,
    "qwen2_5_vl_vision": qwen2_5,
    "qwen3_vl_vision": qwen3,
    "qwen3_5_vision": qwen3,
    "moonvit": moonvit,
    "llama4_vision_model": llama4,
    "mllama_vision_model": mllama,
    "glm4v_vision": glm4v,
    "internvl_vision": internvl,
    "idefics3_vision": idefics3,
    "minimax_m3_vl_vision": minimax,
    "step3p7_vision": step,
    "gemma4_vision": gemma4,
}
"""By model type of the tower; each also takes the width of the decoder."""
