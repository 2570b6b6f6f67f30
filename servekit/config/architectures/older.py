"""Families from before rotary embeddings and RMS norms were usual, and those that nest their
numbers in `attn_config` and `ffn_config`.
"""

from typing import Any

from servekit.config.architectures import extras
from servekit.config.architectures.common import FUSED, SIDE_BY_SIDE
from servekit.config.architectures.family import Draft, Family
from servekit.errors import ConfigError


def biased(**changes: Any) -> Family:
    """LayerNorm, an MLP without a gate four times as wide as the residual stream, tied."""
    return Family(
        **{
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "gated": False,
            "four_times": True,
            "tied": True,
            "norm": "layer",
            **changes,
        }
    )


def learned_positions(draft: Draft) -> None:
    draft.tree["rope"] = {"kind": "other"}
    draft.other += draft.hidden * int(draft.tree["max_position_embeddings"])
    draft.note("learned positions")


def alibi(draft: Draft) -> None:
    draft.tree["rope"] = {"kind": "other"}
    draft.note("ALiBi")


def one_kv_head(draft: Draft) -> None:
    if draft.values.tree.get("multi_query") is not False:
        draft.tree["kv_heads"] = 1


def opt(draft: Draft) -> None:
    """The first position is the third row of the table."""
    width = draft.values.count_or(draft.hidden, "word_embed_proj_dim")
    if width != draft.hidden:
        raise ConfigError(
            f"word_embed_proj_dim ({width}) is not hidden_size ({draft.hidden}), which cannot be "
            "planned; write model.shape by hand as the nearest model that can"
        )
    draft.other += 2 * draft.hidden


def embedding_norm(draft: Draft) -> None:
    draft.other += 2 * draft.hidden
    draft.note("a norm of the embedding")


OLDER: dict[str, Family] = {
    "gpt2": biased(notes=(FUSED,), extras=(learned_positions,)),
    "gpt_bigcode": biased(notes=(FUSED,), extras=(learned_positions, one_kv_head)),
    "opt": biased(extras=(learned_positions, opt)),
    "gptj": biased(
        qkv_bias=False,
        output_bias=False,
        tied=False,
        layer_norms=1,
        notes=(SIDE_BY_SIDE,),
        extras=(extras.head_bias(),),
    ),
    "bloom": biased(
        fixed={"max_position_embeddings": 2048}, notes=(FUSED,), extras=(alibi, embedding_norm)
    ),
    "mpt": biased(
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        norm="layer_without_bias",
        notes=(FUSED,),
        extras=(alibi,),
    ),
    "dbrx": Family(norm="layer_without_bias", notes=(FUSED,)),
}
