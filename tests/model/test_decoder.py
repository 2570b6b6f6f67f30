"""The decoder against transformers, on tiny random models of every family."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from servekit.config.shape import Shape
from servekit.model.decoder import Decoder
from servekit.model.weights import load_decoder
from tests.model.families import FAMILIES, save
from tests.model.steps import Paged

LENGTH = 23


@dataclass
class Case:
    model: Any
    shape: Shape
    decoder: Decoder
    folder: Path

    def truth(self, tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.tensor([tokens])).logits[0]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    model, shape = save(request.param, folder)
    decoder = load_decoder(folder, shape, "float32", "cpu", lambda done, total: None)
    return Case(model, shape, decoder, folder)


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 300, (length,), generator=generator).tolist()


def close(ours: torch.Tensor, truth: torch.Tensor) -> None:
    torch.testing.assert_close(ours, truth, rtol=1e-5, atol=2e-5)


def test_a_whole_prompt_has_the_logits_of_transformers(case):
    tokens = prompt(1)
    close(Paged(case.decoder).step(a=tokens)["a"], case.truth(tokens))


def test_a_prompt_in_chunks_has_the_logits_of_the_whole(case):
    tokens, paged = prompt(2), Paged(case.decoder)
    parts = [paged.step(a=tokens[start : start + 7])["a"] for start in range(0, LENGTH, 7)]
    close(torch.cat(parts), case.truth(tokens))


def test_tokens_one_by_one_have_the_logits_of_the_whole(case):
    tokens, paged = prompt(3), Paged(case.decoder)
    parts = [paged.step(a=[token])["a"] for token in tokens]
    close(torch.cat(parts), case.truth(tokens))


def test_rows_of_a_ragged_batch_do_not_see_each_other(case):
    a, b, c, d = (prompt(seed) for seed in range(4, 8))
    paged = Paged(case.decoder)
    paged.step(a=a[:20], c=c[:3])
    paged.step(d=d[:1], c=c[3:5])
    step = paged.step(a=a[20:21], b=b[:9], c=c[5:6], d=d[1:14])
    step2 = paged.step(d=d[14:15], c=c[6:7], b=b[9:10], a=a[21:22])
    close(step["a"], case.truth(a)[20:21])
    close(step["b"], case.truth(b)[:9])
    close(step["c"], case.truth(c)[5:6])
    close(step["d"], case.truth(d)[1:14])
    for name, tokens, at in (("a", a, 21), ("b", b, 9), ("c", c, 6), ("d", d, 14)):
        close(step2[name], case.truth(tokens)[at : at + 1])


def test_greedy_tokens_are_those_of_generate(case):
    tokens, paged = prompt(8, 11), Paged(case.decoder)
    truth = case.model.generate(
        torch.tensor([tokens]), max_new_tokens=16, do_sample=False, pad_token_id=0
    )[0, 11:].tolist()
    ours = []
    row = tokens
    for _ in range(16):
        row = [int(paged.step(a=row)["a"][-1].argmax())]
        ours += row
    assert ours == truth


def test_bfloat16_logits_are_within_rounding_of_those_of_transformers(case):
    """Four percent of the largest logit: ten roundings to 8 bits. Where two experts are nearly
    equal a rounding chooses, and tokens that see that one differ too: a quarter of them may."""
    tokens = prompt(9)
    decoder = load_decoder(case.folder, case.shape, "bfloat16", "cpu", lambda done, total: None)
    model = type(case.model).from_pretrained(
        case.folder, config=case.model.config, dtype=torch.bfloat16
    )
    with torch.no_grad():
        truth = model(torch.tensor([tokens])).logits[0].float()
    ours = Paged(decoder).step(a=tokens)["a"]
    off = (ours - truth).abs().amax(-1) > 0.04 * truth.abs().max()
    assert int(off.sum()) <= (0 if case.shape.moe is None else LENGTH // 4)


@pytest.mark.parametrize("wanted", [[4, 1], []])
def test_only_wanted_positions_have_logits_in_the_order_asked(case, wanted):
    tokens = prompt(1, 5)
    paged = Paged(case.decoder)
    inputs = replace(paged.inputs(a=tokens), sample_at=torch.tensor(wanted, dtype=torch.int64))
    close(case.decoder(inputs, paged.cache), case.truth(tokens)[wanted])
