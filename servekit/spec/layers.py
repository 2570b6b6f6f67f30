"""The tensors of one decoder layer on one rank: its mixer, its MLP or experts, its norms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from servekit.config.parts import Moe
from servekit.config.shape import Shape
from servekit.spec.mixers import attention, indexer, latent_attention, state_layer
from servekit.spec.tensors import Part, Split, Tensor, projection


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of one kind hold the same tensors. `shared_kv` reads the cache of an earlier layer.

    `full` ones see everything and have other heads than those that slide; `indexed` ones choose
    what latent attention reads.
    """

    mixer: Literal["attention", "shared_kv", "state"] | None
    mlp: Literal["dense", "experts"] | None
    full: bool = False
    indexed: bool = False


def layer_kinds(shape: Shape) -> tuple[LayerKind, ...]:
    """The kind of every layer, in order."""
    states = {*(shape.state.layers if shape.state else ())}
    attending, shared = {*shape.attention_layers}, {*shape.shared_kv_layers}
    dense, moe = {*shape.dense_layers}, {*shape.moe_layers}
    indexed = {*shape.indexed_layers}
    two_kinds = shape.has_two_kinds

    def kind(layer: int) -> LayerKind:
        mixer: Literal["attention", "shared_kv", "state"] | None = None
        if layer in states:
            mixer = "state"
        elif layer in attending:
            mixer = "shared_kv" if layer in shared else "attention"
        mlp: Literal["dense", "experts"] | None = None
        if layer in dense or layer in moe:
            mlp = "dense" if layer in dense else "experts"
        full = two_kinds and layer in attending and shape.window(layer) is None
        return LayerKind(mixer, mlp, full=full, indexed=layer in indexed)

    return tuple(kind(layer) for layer in range(shape.layers))


def layer_tensors(shape: Shape, kind: LayerKind, split: Split) -> Iterator[Tensor]:
    """A norm before each of mixer and MLP, and with `post_norms` one after; every rank has them."""
    norms = 0
    if kind.mixer is not None:
        norms += 1
        if kind.mixer == "state":
            yield from state_layer(shape, split)
        elif shape.mla is not None:
            yield from latent_attention(shape, shape.mla, split)
        else:
            shares_kv = kind.mixer == "shared_kv"
            yield from attention(shape, split, shares_kv=shares_kv, full=kind.full)
        if kind.indexed and shape.mla is not None and shape.mla.indexer is not None:
            yield from indexer(shape, shape.mla, shape.mla.indexer)
    if kind.mlp is not None:
        norms += 1
        if kind.mlp == "dense":
            width = split.of(shape.intermediate_size)
            yield from mlp("mlp", shape, width, bias=shape.mlp_bias)
        elif shape.moe is not None:
            yield from experts(shape, shape.moe, split)
    yield Tensor("norms", outputs=shape.hidden_size, copies=norms * (2 if shape.post_norms else 1))


def mlp(
    part: Part, shape: Shape, width: int, *, bias: bool = False, copies: int = 1
) -> Iterator[Tensor]:
    """Up, of the same size a gate where there is one, and down."""
    into = 2 if shape.gated_mlp else 1
    yield from projection(part, shape.hidden_size, width, bias=bias, copies=into * copies)
    yield from projection(part, width, shape.hidden_size, bias=bias, copies=copies)


def experts(shape: Shape, moe: Moe, split: Split) -> Iterator[Tensor]:
    """Routed experts, whole or cut; shared ones, cut like an MLP; the router, on every rank."""
    width = split.of_expert(moe.intermediate_size)
    yield from mlp("experts", shape, width, bias=moe.expert_bias, copies=split.experts)
    if moe.shared_intermediate_size:
        yield from mlp("shared_experts", shape, split.of(moe.shared_intermediate_size))
    if moe.shared_gate:
        yield Tensor("shared_experts", outputs=1, inputs=shape.hidden_size)
    yield Tensor("routers", outputs=moe.experts, inputs=shape.hidden_size)
    if moe.router_bias:
        yield Tensor("routers", outputs=moe.experts)
