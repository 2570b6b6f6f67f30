"""Graphs of decode steps by torch.cuda."""

import gc

import torch

from servekit.engine.graphs import Replay
from servekit.engine.static_inputs import StaticDecodes
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder


def capturable(decoder: Decoder) -> bool:
    """Attention, what writes to the cache, and experts ask the host for no lengths, and know
    padding."""
    asking = ["attention", "rope_and_cache"] + ["moe"] * (decoder.shape.moe is not None)
    return all(decoder.kernels.by[op] == "triton" for op in asking)


class CudaCapturer:
    """All graphs share one pool of memory: one runs at a time, and nobody needs what another left.

    Only the thread that captures may not do what a capture forbids; the loop's thread says
    meanwhile that the engine is there.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, static: StaticDecodes) -> None:
        self.decoder, self.cache, self.static = decoder, cache, static
        # what torch keeps for later is not free for a graph's own pool
        gc.collect()
        torch.cuda.empty_cache()
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.logits: torch.Tensor | None = None
        """Of whichever graph ran last: of a large vocabulary, each its own would be gigabytes."""

    @torch.inference_mode()
    def capture(self, size: int) -> Replay:
        step = self.static.of(size)
        # once as it is: kernels are compiled, libraries take their workspace
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            logits: torch.Tensor = self.decoder(step, self.cache)
            if self.logits is None:
                self.logits = torch.empty_like(logits)
        torch.cuda.synchronize()
        del logits
        out, graph = self.logits[:size], torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            out.copy_(self.decoder(step, self.cache))

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    def used_bytes(self) -> int:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free
