"""Packed weights give what plain ones give, and only layers for which it pays are packed."""

import copy
from types import SimpleNamespace

import pytest
import torch
from decoder_models import ragged_prompts, tiny_heads, tiny_llama
from one_line import one_line
from torch import nn

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder import packed
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.measure import kernels
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.operators.gemm import Gemm

IN_BF16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU packs no weights in bf16"
)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=IN_BF16)])
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_a_packed_layer_is_the_layer(dtype, rows):
    plain = nn.Linear(96, 64).to(dtype).requires_grad_(requires_grad=False)
    x = torch.randn(2, rows, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    close = {"rtol": 0, "atol": 0} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(packed.PackedLinear(plain)(x), plain(x), **close)


def test_a_dtype_that_the_cpu_cannot_pack_is_refused(monkeypatch):
    def refused(weight: torch.Tensor) -> None:
        raise RuntimeError("the bf16 path needs avx512bw\nand more")

    monkeypatch.setattr(packed, "_LIBRARY", SimpleNamespace(_reorder_linear_weight=refused))
    with one_line(UsageError, "bfloat16 cannot be packed on this CPU (the bf16 path needs avx512bw)"):
        packed.PackedLinear(nn.Linear(4, 4).to(torch.bfloat16))


def test_texts_of_a_packed_model_are_those_of_the_plain_one(monkeypatch):
    monkeypatch.setattr(packed, "PACKED_FROM", 1)
    model = tiny_llama(dtype=torch.float32)
    heads = tiny_heads(model)
    other, other_heads = copy.deepcopy(model), copy.deepcopy(heads)
    packed.pack(other, other_heads)
    assert not [each for each in (*other.modules(), *other_heads.modules()) if isinstance(each, nn.Linear)]
    settings = GenerationSettings(max_new_tokens=24, stop_at_end_of_text=False)
    tree = CandidateTree.cartesian([2, 2])
    for prompt in ragged_prompts(3, 13):
        texts = [
            generate(one, [prompt], settings, drafter).sequences[0].token_ids
            for one, drafter in (
                (model, None),
                (other, None),
                (other, MedusaDrafter(other, other_heads, tree)),
            )
        ]
        assert texts[0] == texts[1] == texts[2]


def test_small_layers_stay_as_they_are_and_half_precision_is_refused():
    model = tiny_llama(dtype=torch.float32)
    packed.pack(model, None)
    assert not [each for each in model.modules() if isinstance(each, packed.PackedLinear)]
    large = nn.Sequential(nn.Linear(512, 512)).to(torch.float16)
    with pytest.raises(UsageError, match="fp32 or bf16 can"):
        packed.pack(large)


@pytest.mark.parametrize(("size", "calls"), [(512, 1), (32, 0)])
def test_operators_are_measured_as_the_packed_decoder_calls_them(monkeypatch, size, calls):
    seen = []
    monkeypatch.setattr(kernels, "product", lambda *given: seen.append(given))
    linear = Gemm(name="x", m=4, n=size, k=size, dtype="fp32")
    case = TimedShape(operator=linear, between_bytes=1.0, activation_bytes=1.0, level=0)
    for is_packed in (False, True):
        pool = kernels.Pool(torch.device("cpu"), 1000, packed=is_packed)
        kernels.calls(case, pool)[0]()
    assert len(seen) == calls
