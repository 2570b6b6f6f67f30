"""A mixture of experts in the place of an MLP."""

import torch
from torch import nn

from servekit.config.shape import Shape
from servekit.kernels.moe_routing import Routing
from servekit.kernels.table import Kernels
from servekit.model.layers import Mlp, Place, Projection, empty


class Experts(nn.Module):
    """Routed experts, and beside them one that every token passes through where there is any.

    Scores by sigmoid are computed in float32, as DeepSeek-V3 does.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        moe, hidden = shape.moe, shape.hidden_size
        assert moe is not None, "a shape with experts"
        self.activation = shape.activation
        self.routing = Routing(
            moe.experts_per_token, moe.router, moe.renormalise, scale=moe.routed_scale
        )
        held = torch.float32 if moe.router == "sigmoid" else dtype
        width = moe.intermediate_size
        self.router = empty(moe.experts, hidden, dtype=held, device=device)
        self.correction = (
            empty(moe.experts, dtype=torch.float32, device=device) if moe.router_bias else None
        )
        self.gate_up = empty(moe.experts, 2 * width, hidden, dtype=dtype, device=device)
        self.down = empty(moe.experts, hidden, width, dtype=dtype, device=device)
        shared = moe.shared_intermediate_size
        self.shared = Mlp(shape, shared, dtype=dtype, device=device) if shared else None
        self.shared_gate = (
            Projection(hidden, 1, bias=False, dtype=dtype, device=device)
            if moe.shared_gate
            else None
        )

    def forward(self, x: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        logits = kernels.linear(x.to(self.router.dtype), self.router, None)
        routes = kernels.moe.route(logits, self.routing, self.correction)
        mixed: torch.Tensor = kernels.moe.mix(x, self.gate_up, self.down, routes, self.activation)
        if self.shared is None:
            return mixed
        shared: torch.Tensor = self.shared(x, kernels)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x, kernels)) * shared
        return mixed + shared

    def places(self) -> Place:
        held: Place = {"gate.weight": self.router}
        if self.correction is not None:
            held["gate.e_score_correction_bias"] = self.correction
        width = self.down.shape[2]
        for expert in range(len(self.down)):
            held[f"experts.{expert}.gate_proj.weight"] = self.gate_up[expert, :width]
            held[f"experts.{expert}.up_proj.weight"] = self.gate_up[expert, width:]
            held[f"experts.{expert}.down_proj.weight"] = self.down[expert]
        if self.shared is not None:
            places = self.shared.places()
            held |= {f"shared_expert.{name}": view for name, view in places.items()}
        if self.shared_gate is not None:
            held["shared_expert_gate.weight"] = self.shared_gate.weight
        return held
