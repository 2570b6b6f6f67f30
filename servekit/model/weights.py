"""From a checkpoint to a decoder, one piece of one tensor at a time."""

from collections.abc import Callable
from pathlib import Path

import torch

from servekit.config.shape import Shape
from servekit.errors import WeightsError
from servekit.model.checkpoint import BLOCKS, Checkpoint, Stored, chunks, differences
from servekit.model.decoder import Decoder
from servekit.model.gguf_file import read_gguf
from servekit.model.layers import Place
from servekit.model.safetensors_folder import read_folder

UNUSED_PREFIXES = ("vision_tower.", "multi_modal_projector.", "vision_model.")
"""Parts of multimodal checkpoints that a text decoder leaves alone."""

UNUSED_SUFFIXES = ("rotary_emb.inv_freq", "embed_vision.weight")
"""Tables that older checkpoints saved and that follow from the shape."""

HEAD = "lm_head.weight"

NAMED = 5


def load_decoder(
    path: Path, shape: Shape, dtype: str, device: str, progress: Callable[[int, int], None]
) -> Decoder:
    """A decoder with the weights of a `.gguf` file or a Hugging Face folder, in `dtype`.

    `progress` is called with bytes read and bytes in all. Peak memory is that of the decoder and
    one decoded piece. Raises WeightsError if the file is not whole or not of this shape.
    """
    checkpoint = open_checkpoint(path, shape)
    decoder = Decoder(shape, dtype, device)
    places = decoder.places()
    wanted = [stored for stored in checkpoint.tensors if not _unused(stored, places)]
    _check(checkpoint, wanted, shape, places)
    total = sum(stored.num_bytes for stored in wanted)
    done = 0
    progress(done, total)
    add_one = shape.norm_unit_offset and not checkpoint.unit_offset_added
    for stored in wanted:
        place = places[stored.canonical]
        copy_into(place, stored)
        if add_one and _is_norm(stored.canonical):
            place.add_(1)
        done += stored.num_bytes
        progress(done, total)
    for stored in checkpoint.tensors:
        if stored.canonical == HEAD and HEAD not in places:
            _check_tied(stored, decoder.embedding)
    return decoder.eval()


def _check_tied(head: Stored, embedding: torch.Tensor) -> None:
    """Raises WeightsError where a file's own head is not the embedding that the shape makes it."""
    same = head.size == tuple(embedding.shape) and all(
        torch.equal(rows.to(embedding.dtype), embedding[first : first + rows.shape[0]])
        for first, rows in chunks(head)
    )
    if not same:
        raise WeightsError(
            f"{head.name} of {head.file} is not the embedding, and tie_word_embeddings says that "
            "it is; make that false, in config.json and in model.shape"
        )


def open_checkpoint(path: Path, shape: Shape) -> Checkpoint:
    """What is at `path`, read as the checkpoint of a decoder of this shape."""
    if path.is_dir():
        return read_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return read_gguf(path, shape)
    what = "is not there" if not path.exists() else "is neither"
    raise WeightsError(f"{path} {what}; weights are a .gguf file or a Hugging Face folder")


def copy_into(place: torch.Tensor, stored: Stored) -> None:
    """Decode a tensor into the memory that holds it, converted to its dtype."""
    if len(stored.size) == 1:
        [(_, vector)] = chunks(stored)
        place.copy_(vector.flatten())  # the norm of a head goes to every head
        return
    for first, rows in chunks(stored):
        place[first : first + rows.shape[0]].copy_(rows)


def _unused(stored: Stored, places: Place) -> bool:
    if stored.canonical == "lm_head.weight":
        return stored.canonical not in places
    return stored.canonical.startswith(UNUSED_PREFIXES) or stored.canonical.endswith(
        UNUSED_SUFFIXES
    )


def _is_norm(canonical: str) -> bool:
    return canonical.endswith("norm.weight")


def _size(canonical: str, place: torch.Tensor) -> tuple[int, ...]:
    return (place.shape[-1],) if _is_norm(canonical) else tuple(place.shape)


def _check(checkpoint: Checkpoint, wanted: list[Stored], shape: Shape, places: Place) -> None:
    """All that is wrong with the checkpoint, in one error."""
    found = {stored.canonical: stored for stored in wanted}
    names = checkpoint.names
    problems = differences(shape, checkpoint.facts)
    problems += _listed("missing", [names.get(name, name) for name in places if name not in found])
    problems += _listed("unknown", [s.name for s in wanted if s.canonical not in places])
    twice = {s.name for s in wanted if found[s.canonical] is not s}
    problems += _listed("there twice:", sorted(twice))
    known = [stored for stored in found.values() if stored.canonical in places]
    wrong = [
        f"{s.name} {list(s.size)} where the shape says {list(expected)}"
        for s in known
        if s.size != (expected := _size(s.canonical, places[s.canonical]))
    ]
    problems += _listed("mis-shaped", wrong)
    kinds = [f"{s.name} ({s.kind})" for s in known if s.kind not in BLOCKS]
    problems += _listed(f"not in a supported dtype ({', '.join(BLOCKS)}):", kinds)
    if problems:
        raise WeightsError(
            f"{checkpoint.path} does not hold the configured model: {'; '.join(problems)}. "
            "Make model.shape that of these weights, or model.source those of this shape"
        )


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    count = f"{len(names)} tensors {what}" if len(names) > 1 else f"tensor {what}"
    return [f"{count} {', '.join(names[:NAMED])}{more}"]
