"""What a step keeps in memory, by hand: Kimi-Linear-48B in bf16, 20 recurrent layers and 7 latent ones.

Sizes of its config.json: hidden 2304, 163840 words; 32 heads of 128 x 128 with a convolution over 4 tokens of
3 x 4096 channels; a latent key of 512 + 64; a dense layer of 9216, gated.
"""

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.file_types import FILES, OF_MLX
from medusa_sim.grid.cells import price
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu, with_dtypes
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle3, Mtp
from medusa_sim.step.drafter.parallel import PEagle
from medusa_sim.step.memory import (
    activation_bytes,
    drafter_memory,
    largest_batch,
    request_bytes,
    step_memory_bytes,
    usable_memory_bytes,
)

MODEL = load_model("kimi-linear-48b-a3b")
STATE_BYTES = 20 * (32 * 128 * 128 * 4 + 3 * (3 * 4096) * 2)
"""fp32 matrices, and the last three inputs of the convolution."""
TOKEN_BYTES = 7 * (512 + 64) * 2
ROW_BYTES = 2 * (3 * 9216 + 2 * 2304) + 4 * 163840
"""Gate, up and their product beside two rows of the hidden state; logits in fp32."""


@pytest.mark.parametrize("verified", [1, 2, 5, np.array([1, 4])])
def test_a_request_keeps_its_tokens_and_a_state_for_each_verified_token(verified):
    kept = request_bytes(MODEL, 1000, verified)
    assert kept == pytest.approx(1000 * TOKEN_BYTES + verified * STATE_BYTES, rel=1e-12)


def test_a_model_without_states_keeps_its_tokens_alone():
    llama = load_model("llama-3.1-8b")
    for verified in (1, 4):
        assert request_bytes(llama, 1000, verified) == 1000 * 32 * 2 * 8 * 128 * 2


SPLITS = [
    ("deepseek-r1", {"tp": 8}, Mtp(depth=3)),
    ("deepseek-r1", {"tp": 8, "ep": 8}, Eagle3(depth=3)),
    ("deepseek-r1", {"tp": 8, "ep": 8, "dp_attention": True}, Mtp(depth=3)),
    ("deepseek-r1", {"tp": 8, "dp_attention": True}, PEagle(depth=3)),
    ("gpt-oss-120b", {"tp": 2}, DraftModel(draft=load_model("gpt-oss-20b"), depth=3)),
    ("gpt-oss-120b", {"tp": 4, "dp_attention": True}, DraftModel(draft=load_model("gpt-oss-20b"), depth=3)),
    ("kimi-linear-48b-a3b", {}, None),
    ("qwen3.5-27b", {"tp": 2}, Mtp(depth=2)),
]


@pytest.mark.parametrize(("model", "ways", "drafter"), SPLITS)
@pytest.mark.parametrize("length", [500, 131_072])
def test_every_batch_up_to_the_largest_fits_and_no_other(model, ways, drafter, length):
    """On each of the GPUs; where each attends to its own requests the fullest has a whole one more."""
    shard, usable = on_one_gpu(load_model(model), Parallel(**ways)), 170e9
    asked = length, 1 if drafter is None else 4
    most = int(largest_batch(shard, drafter_memory(shard, drafter), usable, *asked))
    needed = step_memory_bytes(shard, drafter, np.arange(1, 2 * most + 2), *asked)
    assert most > 0
    assert (needed[:most] <= usable).all()
    assert (needed[most:] > usable).all()
    assert most % shard.parallel.schedulers == 0


def test_a_request_lies_whole_on_one_gpu():
    """DeepSeek-R1 on eight GPUs: 33 requests put five on one of them, as 40 do."""
    model, length = load_model("deepseek-r1"), 131_072
    of_all, of_own = (on_one_gpu(model, Parallel(tp=8, ep=8, dp_attention=own)) for own in (False, True))
    assert request_bytes(of_own, length) == request_bytes(of_all, length) == length * 61 * (512 + 64) * 2
    one, eight, some, full = (float(step_memory_bytes(of_own, None, n, length, 1)) for n in (1, 8, 33, 40))
    assert one == eight
    assert some == full
    rows_bytes = float(activation_bytes(of_own, 32, 32))  # gathered from all GPUs
    assert full - eight == pytest.approx(4 * float(request_bytes(of_own, length + 1)) + rows_bytes)


def test_a_draft_that_is_split_over_gpus_keeps_its_part_of_every_request():
    """However the target's attention is split: a token of the draft is 24 x 8 x 64 x 2 elements."""
    model, draft = load_model("gpt-oss-120b"), DraftModel(draft=load_model("gpt-oss-20b"), depth=3)
    for own in (False, True):
        shard = on_one_gpu(model, Parallel(tp=4, dp_attention=own))
        slots = 1 + draft.kv_slots()
        cache = step_memory_bytes(shard, draft, 8, np.array([4000, 5000]), 1)
        cache = np.diff(cache - step_memory_bytes(shard, None, 8, np.array([4000, 5000]) + slots - 1, 1))
        assert cache == pytest.approx(8 * 1000 * 24 * 8 * 64 * 2 * 2 / 4, rel=1e-9)


@pytest.mark.parametrize("candidates", [1, 4])
def test_a_step_holds_weights_tokens_states_rows_and_its_drafter(candidates):
    batch, seq_len = 10, 1000
    rows = batch * candidates
    assert activation_bytes(MODEL, rows, rows) == rows * ROW_BYTES
    request = (seq_len + candidates) * TOKEN_BYTES + candidates * STATE_BYTES
    held = float(step_memory_bytes(MODEL, None, batch, seq_len, candidates))
    assert held == pytest.approx(MODEL.weight_bytes + batch * request + rows * ROW_BYTES, rel=1e-12)
    drafter = Eagle3(depth=3)
    more = float(step_memory_bytes(MODEL, drafter, batch, seq_len, candidates)) - held
    slots = drafter.kv_slots() * TOKEN_BYTES
    own = drafter.kv_bytes_per_token(MODEL) * (seq_len + candidates + drafter.kv_slots())
    assert more == pytest.approx(drafter.weight_bytes(MODEL) + batch * (own + slots))


def test_the_largest_batch_is_what_the_card_has_left_over_what_a_request_takes():
    """(R10) on an H200, 141 x 2^30 bytes: 0.9 of them less 1 GB."""
    scenario = ms.Scenario(gpu="h200-sxm", model=MODEL.name, drafter="ngram", acceptance=0.7)
    cells = price(scenario, [1], [1024])
    usable = 0.9 * 141 * 2**30 - 1e9
    assert usable_memory_bytes(scenario.gpu) == pytest.approx(usable)
    counts = np.asarray(cells.configurations.candidates)
    request = (1024 + counts) * TOKEN_BYTES + counts * (STATE_BYTES + ROW_BYTES)
    assert counts.tolist()[:2] == [1, 2]
    np.testing.assert_array_equal(cells.surface.max_batch[0], (usable - MODEL.weight_bytes) // request)


@pytest.mark.parametrize("form", [None, *(name for name in FILES if not name.startswith(OF_MLX))])
def test_an_mtp_module_weighs_what_its_layer_weighs_in_the_file(form):
    model = with_dtypes(load_model("qwen3.5-27b"), None, form)
    fusion = 2 * model.hidden * model.hidden  # the last hidden state and the next token's embedding
    layer_bytes = model.mtp_module.layers_weight_bytes
    expected = layer_bytes + 2.0 * (fusion + model.hidden)  # in 16 bits, with the norm before the head
    assert Mtp(depth=1).weight_bytes(model) == pytest.approx(expected)
    assert layer_bytes == pytest.approx(model.layers_weight_bytes / 64, rel=0.35)  # one of 64 layers
