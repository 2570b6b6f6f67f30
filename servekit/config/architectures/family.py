"""What a model type means beyond the numbers in its file, and the shape while it is being read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from servekit.config.architectures.values import Values

Flag = bool | str
"""Always, never, or where the key of this name is true."""

Windows = Literal["none", "all", "upper", "pattern", "chunked"]


@dataclass(slots=True)
class Draft:
    """A tree for `Shape` that readers add to, one after the other.

    `kinds` says for each layer what carries its past: full, sliding or chunked attention, a state,
    or nothing; `part_names` what the file calls it. `other` may pass through negative, in a family
    with fewer norms than a plain decoder.
    """

    kind: str
    family: "Family"
    values: Values
    layers: int
    hidden: int
    kinds: list[str] = field(default_factory=list)
    tree: dict[str, Any] = field(default_factory=dict)
    part_names: list[Any] = field(default_factory=list)
    other: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, phrase: str) -> None:
        if phrase not in self.notes:
            self.notes.append(phrase)

    def is_set(self, flag: Flag) -> bool:
        return self.values.flag(flag) if isinstance(flag, str) else flag

    @property
    def attention_layers(self) -> int:
        return sum(kind in ("full", "sliding", "chunked") for kind in self.kinds)

    @property
    def query_width(self) -> int:
        return int(self.tree["heads"] * self.tree["head_dim"])

    @property
    def key_width(self) -> int:
        return int(self.tree["kv_heads"] * self.tree["head_dim"])


@dataclass(frozen=True, slots=True)
class Family:
    """`windows`: where files name no layer types, no layer slides, all do, the upper ones from
    `max_window_layers` on, all but every nth, or the chunked ones are those with positions.

    `norm` is of layers and head: RMS, or LayerNorm with or without a bias. `layer_norms` are those
    of one layer, in vectors of the hidden size. `fixed` holds for keys that a file leaves out.
    `extras` read what no other family has.
    """

    windows: Windows = "none"
    pattern: int = 0
    qkv_bias: Flag = False
    output_bias: Flag = False
    mlp_bias: Flag = False
    qk_norm: Flag = False
    gated: bool = True
    last_is_full: bool = False
    four_times: bool = False
    tied: bool = False
    unit_offset: bool = False
    scale_embeddings: bool = False
    post_norms: bool = False
    norm: Literal["rms", "layer", "layer_without_bias"] = "rms"
    layer_norms: int = 2
    attention_scale: str | None = None
    theta: float = 10_000.0
    state: Literal["mamba1", "mamba2", "gated_delta", "kda", "lightning"] | None = None
    state_norms: bool = False
    shared_gate: bool = False
    router: Literal["softmax", "sigmoid", "other"] = "other"
    renormalise: Flag = "norm_topk_prob"
    shared_is_mlp: bool = False
    expert_bias: bool = False
    router_bias: Flag = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    extras: tuple[Callable[[Draft], None], ...] = ()
