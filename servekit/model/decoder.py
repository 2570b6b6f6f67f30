"""One decoder-only transformer for every family it knows, driven by the numbers of a Shape."""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from servekit.config.shape import Shape
from servekit.errors import NotBuilt
from servekit.kernels.attention import Lengths
from servekit.kernels.rope import rope_tables
from servekit.kernels.table import OPS, choose
from servekit.model.cache import DTYPES, KvCache
from servekit.model.inputs import StepInputs
from servekit.model.layers import Layer, LayerStep, Norm, Place, empty
from servekit.model.rope import inverse_frequencies
from servekit.model.sizes import padded
from servekit.spec.activations import GATHER_TOKENS
from servekit.spec.decodable import beyond_the_decoder


class Decoder(nn.Module):
    """Llama, Qwen 2 and 3, Mistral, Gemma 2 and 3; parameters are left for a loader to set.

    Raises NotBuilt for a shape with parts that it does not compute.
    """

    def __init__(self, shape: Shape, dtype: str, device: str) -> None:
        super().__init__()
        if beyond := beyond_the_decoder(shape):
            raise NotBuilt(f"this release plans but does not run: {'; '.join(beyond)}")
        self.shape = shape
        self.dtype = DTYPES[dtype]
        self.device = device
        self.compute_by(dict.fromkeys(OPS, "torch"))
        self.embedding = empty(shape.vocab_size, shape.hidden_size, dtype=self.dtype, device=device)
        self.layers = nn.ModuleList(Layer(shape, self.dtype, device) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden_size, shape=shape, dtype=self.dtype, device=device)
        self.head = (
            self.embedding
            if shape.tie_word_embeddings
            else empty(shape.vocab_size, shape.hidden_size, dtype=self.dtype, device=device)
        )
        # rounded to the dtype, as Gemma's own code does
        scale = shape.hidden_size**0.5 if shape.scale_embeddings else 1.0
        self.embedding_scale = float(torch.tensor(scale, dtype=self.dtype))
        # by window: a layer's window and its rotary embedding go together
        self.frequencies = {}
        for window in {shape.window(index) for index in range(shape.layers)}:
            rope = shape.rope if window is None or shape.local_rope is None else shape.local_rope
            inv_freq, rope_scale = inverse_frequencies(rope, shape.head_dim)
            self.frequencies[window] = (inv_freq.to(device), rope_scale)

    def compute_by(self, asked: Mapping[str, str], *, deterministic: bool = False) -> None:
        """Triton or torch for each operation, until further notice; see `choose`."""
        self.kernels = choose(
            asked, self.device, gather_tokens=GATHER_TOKENS, deterministic=deterministic
        )

    @torch.no_grad()
    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        """Logits, float32 [S, vocab_size], of the tokens at `inputs.sample_at`.

        Writes keys and values of all T tokens to the cache.
        """
        tokens = len(inputs.token_ids)
        padding = self._size(tokens) - tokens
        residual = F.embedding(F.pad(inputs.token_ids, (0, padding)), self.embedding)
        if self.shape.scale_embeddings:
            residual *= self.embedding_scale
        positions = F.pad(inputs.positions, (0, padding))
        steps = {
            key: step
            for window in self.frequencies
            for key, step in self._layer_steps(inputs, positions, cache, window)
        }
        x = None
        for index, layer in enumerate(self.layers):
            step = steps[self.shape.window(index), cache.group_of(index)]
            x = layer(x, residual, step, cache.layer(index))
        samples = len(inputs.sample_at)
        at = F.pad(inputs.sample_at, (0, self._size(samples) - samples))
        assert x is not None, "a decoder has layers"
        normed = self.norm.added(x[at], residual[at], self.kernels)
        logits = self.kernels.linear(normed, self.head, None)[:samples].float()
        cap = self.shape.final_logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _size(self, rows: int) -> int:
        return padded(rows) if self.embedding.is_cpu else rows

    def _layer_steps(
        self, inputs: StepInputs, positions: torch.Tensor, cache: KvCache, window: int | None
    ) -> Iterator[tuple[tuple[int | None, int], LayerStep]]:
        """By window and group, for each group with layers of this window."""
        layers = [layer for layer in range(self.shape.layers) if self.shape.window(layer) == window]
        groups = sorted({cache.group_of(layer) for layer in layers})
        plans = self.kernels.attention.plans(
            Lengths(
                query_lens=inputs.query_lens,
                seq_lens=inputs.seq_lens,
                decodes=inputs.decodes,
                query_starts=inputs.query_starts,
                contexts=inputs.contexts,
            ),
            [inputs.block_tables[group] for group in groups],
            cache.layer(0),
            window=window,
            dtype=self.dtype,
        )
        inv_freq, scale = self.frequencies[window]
        cos, sin = rope_tables(positions, inv_freq, scale, self.dtype)
        for group, plan in zip(groups, plans, strict=True):
            slots = inputs.slots[group]
            yield (window, group), LayerStep(self.kernels, plan, slots, cos, sin)

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters())

    def places(self) -> Place:
        """Where each checkpoint tensor is held, by its Hugging Face name without `model.`."""
        held: Place = {"embed_tokens.weight": self.embedding, "norm.weight": self.norm.weight}
        if not self.shape.tie_word_embeddings:
            held["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            held |= {f"layers.{index}.{name}": view for name, view in layer.places().items()}
        return held
