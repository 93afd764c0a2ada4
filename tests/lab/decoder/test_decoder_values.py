"""Formulas of the decoder by hand: rotations, attention, losses, what a run gained."""

import itertools
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decoder_models import tiny_config, tiny_llama
from left_out import numbers_left_out

from medusa_sim.lab.decoder.attention import attend
from medusa_sim.lab.decoder.config import RopeScaling, config_from_hf
from medusa_sim.lab.decoder.distributions import Draws, distribution, padded_top
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import Generation, GenerationSettings
from medusa_sim.lab.decoder.model_drafter import _distributions_by_parent
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter
from medusa_sim.lab.decoder.prompts import chat_prompt
from medusa_sim.lab.decoder.rotary import Rotations, inverse_frequencies
from medusa_sim.lab.decoder.session import _headline
from medusa_sim.lab.decoder.training.evaluate import mean_tokens_per_step, next_token_loss
from medusa_sim.lab.decoder.training.recipe import Recipe, _heads, _settings
from medusa_sim.lab.decoder.training.train import combined_weight, distillation_loss, medusa_1_loss
from medusa_sim.lab.decoder.training.trainer import learning_rate_factor
from medusa_sim.lab.decoder.trials import BesidePlain, Sizing


@pytest.mark.parametrize(
    ("scaling", "expected", "factor"),
    [
        ({}, [1.0, 0.1, 0.01, 0.001], 1.0),
        ({"rope_type": "linear", "factor": 4.0}, [0.25, 0.025, 0.0025, 0.00025], 1.0),
        # 64 positions are 8 ln(64 / 2 pi) / (2 ln 10^4) = 1.008 dimensions of one rotation, none of 32
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            [1.0, (0.1 + 0.025) / 2, 0.0025, 0.00025],
            0.1 * math.log(4.0) + 1.0,
        ),
        # and 640 positions are 2.008 dimensions of one, 0.5 of 32
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 640},
            [1.0, 0.1 / 12 + 0.2 / 3, 0.02 / 12 + 0.01 / 3, 0.00025],
            0.1 * math.log(4.0) + 1.0,
        ),
        (
            {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 64},
            [1.0, 0.1, 0.01, 0.001],
            1.0,
        ),
        (
            {
                "rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 64,
                "attention_factor": 1.3,
            },
            [1, 0.1, 0.01, 0.001],
            1.3,
        ),
        # 32 positions are 5.09, 0.509, ... wavelengths: whole from four on, scaled below one
        (
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32},
            [1.0, 0.0125, 0.00125, 0.000125],
            1.0,
        ),
        # of 128 the second are 2.0372: a third of the way (1.0372 / 3) from scaled to whole
        (
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128},
            [1.0, 0.0125 + (0.1 - 0.0125) * (128 / (20 * math.pi) - 1) / 3, 0.00125, 0.000125],
            1.0,
        ),
    ],
)  # fmt: skip
def test_frequencies_are_those_of_their_papers(scaling, expected, factor):
    config = tiny_config(head_dim=8, rope_theta=1e4, rope_scaling=RopeScaling(**scaling))
    found, on_tables = inverse_frequencies(config)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert on_tables == pytest.approx(factor)


def test_frequencies_of_a_config_that_names_no_base_are_those_of_llama():
    values = tiny_config(head_dim=8).to_hf()
    values.pop("rope_theta")
    for config in (config_from_hf(values, "made"), tiny_config(head_dim=8)):
        found, _ = inverse_frequencies(config)
        np.testing.assert_allclose(found.numpy(), [1.0, 0.1, 0.01, 0.001], rtol=1e-5)


@pytest.mark.parametrize(("heads", "layers", "made"), [(None, None, (5, 1)), (2, 3, (2, 3))])
def test_heads_to_train_are_five_of_one_layer_where_none_are_named(heads, layers, made):
    asked = SimpleNamespace(method="medusa-1", medusa_heads=heads, medusa_layers=layers, own_output=None)
    found = _heads(asked, SimpleNamespace(heads=None, model=tiny_llama()), None)
    assert (found.count, found.layers) == made


def test_tables_hold_every_position_that_is_asked_for():
    tables = Rotations(tiny_config(head_dim=8, rope_theta=1e4))
    cos, sin = tables.tables(5, torch.device("cpu"), torch.float64)
    for position in (0, 4):
        angles = position * np.array([1.0, 0.1, 0.01, 0.001])
        np.testing.assert_allclose(cos[position, 0].numpy(), [*np.cos(angles)] * 2, rtol=1e-6)
        np.testing.assert_allclose(
            sin[position, 0].numpy(), [*-np.sin(angles), *np.sin(angles)], rtol=1e-5, atol=1e-12
        )
    more = len(cos) + 1
    assert len(tables.tables(more, torch.device("cpu"), torch.float64)[0]) >= more


def dense(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
    return scores.softmax(-1) @ values


def test_a_window_hides_what_lies_further_back():
    """Of four tokens each sees itself and the one before it."""
    model = tiny_llama(sliding_window=2)
    step = model.causal_pass(torch.zeros(1, 4, dtype=torch.long))
    assert step.mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert model.causal_pass(torch.zeros(1, 2, dtype=torch.long)).mask is None


def test_a_law_is_the_softmax_and_greedy_its_largest():
    logits = torch.tensor([0.0, math.log(3.0)])
    assert distribution(logits, 1.0).tolist() == pytest.approx([0.25, 0.75])
    assert distribution(logits, 0.5).tolist() == pytest.approx([0.1, 0.9])
    assert distribution(logits, 0.0).tolist() == [0.0, 1.0]


def test_the_largest_are_followed_by_nothing():
    best, places = padded_top(torch.tensor([0.5, -torch.inf, 2.0]), 4)
    assert best.tolist() == [2.0, 0.5, -math.inf, -math.inf]
    assert places.tolist() == [2, 0, -1, -1]


def test_gumbel_variables_are_of_the_uniform_ones():
    uniform = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(Draws(3).gumbel(torch.Size([5])), -(-uniform.log()).log())


def test_laws_are_given_to_every_node_that_may_have_children():
    """One root and two children of two laws; four leaves have none."""
    laws = [torch.full((1, 1, 3), 0.2), torch.full((1, 2, 3), 0.3), None]
    joined = _distributions_by_parent(laws, 7)
    assert joined.shape == (1, 7, 3)
    assert joined[0, :, 0].tolist() == pytest.approx([0.2, 0.3, 0.3, 0, 0, 0, 0])
    assert _distributions_by_parent([None], 7) is None


# Training.


def test_distillation_is_the_mean_divergence_of_positions_that_count():
    """KL of (1/2, 1/2) from (3/4, 1/4) at the first of two positions, nothing at the second."""
    teacher = torch.zeros(1, 3, 2)
    student = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0], [5.0, 0.0]]])
    divergence = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    tokens, every = torch.tensor([[0, 1, 0]]), torch.ones(1, 3, dtype=torch.bool)
    assert float(distillation_loss(student, teacher, tokens, every)) == pytest.approx(divergence / 2)
    one = torch.tensor([[True, True, False]])
    assert float(distillation_loss(student, teacher, tokens, one)) == pytest.approx(divergence)
    assert float(distillation_loss(student, teacher, tokens, ~every)) == 0.0


def test_losses_of_heads_are_weighted_by_powers_of_four_fifths():
    assert float(medusa_1_loss(torch.tensor([1.0, 10.0, 100.0]))) == pytest.approx(0.8 + 6.4 + 51.2)


@pytest.mark.parametrize(
    ("step", "weight"), [(0, math.sin(math.pi / 8)), (1, math.sin(math.pi / 4)), (3, 1.0)]
)
def test_the_heads_weight_rises_as_a_sine_to_the_last_step(step, weight):
    assert combined_weight(0.2, step, 4, "sine") == pytest.approx(0.2 * weight)
    assert combined_weight(0.2, step, 4, "constant") == 0.2


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine():
    """Four steps of warm-up, then half a cosine over eight."""
    rates = [learning_rate_factor(step, 12, 4) for step in (0, 1, 3, 4, 6, 8, 10, 12)]
    half = math.sqrt(0.5) / 2
    assert rates == pytest.approx([0.25, 0.5, 1.0, 1.0, 0.5 + half, 0.5, 0.5 - half, 0.0], abs=1e-12)


def text(accepted: list[int]) -> SimpleNamespace:
    return SimpleNamespace(accepted_lengths=accepted, steps=len(accepted))


def test_a_step_emits_its_accepted_drafts_and_one():
    assert mean_tokens_per_step([text([2, 1]), text([0, 0, 1])]) == pytest.approx((4 + 5) / 5)


class Uneven:
    """A model to which token 0 is three times as likely as 1, whatever came before."""

    device = torch.device("cpu")

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tensor([math.log(3.0), 0.0]).expand(*hidden.shape, 2)


def test_the_loss_of_a_text_is_that_of_a_token_after_the_first():
    """0 costs ln 4/3, 1 costs ln 4: two zeros and three ones follow the first tokens."""
    loss = next_token_loss(Uneven(), [[1, 0, 1], [1, 0, 1, 1]])
    assert loss == pytest.approx((2 * math.log(4 / 3) + 3 * math.log(4)) / 5, rel=1e-6)


# What a run gained.


def generation(tokens: int, steps: int, decode_s: float) -> SimpleNamespace:
    """A run of two texts, whose first tokens no step emitted."""
    sequences = [SimpleNamespace(token_ids=[0] * (tokens // 2 + 1), steps=steps // 2) for _ in range(2)]
    return SimpleNamespace(sequences=sequences, steps=steps // 2, decode_s=decode_s)


def test_a_gain_is_tokens_a_second_over_those_of_plain_decoding():
    """20 tokens of 8 steps in 3 s beside 12 of 12 in 2 s: 6.67 a second over 6, for steps of 2.25."""
    found = BesidePlain(run=generation(20, 8, 3.0), plain=generation(12, 12, 2.0))
    assert found.tokens_per_step == pytest.approx(2.5)
    assert found.gain == pytest.approx((20 / 3) / (12 / 2))
    assert found.cost == pytest.approx((3.0 / 4) / (2.0 / 6))
    assert (BesidePlain(run=generation(20, 8, 3.0), plain=None).gain, found.plain.steps) == (None, 6)


def numbers(headline: str) -> list[float]:
    return [float(each) for each in re.findall(r"\d+\.\d+", headline)]


def test_a_headline_has_the_numbers_that_decided():
    """The best tree is expected at 1.9 / 2 = 0.95 with steps of two plain ones."""
    device = torch.device("cpu")
    plain, medusa = (
        SimpleNamespace(name=name, tree="", drafter=SimpleNamespace(nodes=nodes))
        for name, nodes in (("ar", 1), ("medusa", 4))
    )
    beside = BesidePlain(run=generation(20, 8, 3.0), plain=generation(12, 12, 2.0))
    sized = Sizing(step_s={1: 0.5, 4: 1.0}, tokens_per_step={1: 1.0, 4: 1.9})
    assert numbers(_headline(plain, sized, beside, device)) == [0.95, 1.9, 2.0]
    assert numbers(_headline(plain, None, beside, device)) == []
    gained = _headline(medusa, None, beside, device)
    assert numbers(gained) == [1.11, 2.5, 2.25]
    assert "over plain" in gained
    assert "4 candidates" in gained
    slower = BesidePlain(run=generation(20, 8, 4.0), plain=generation(12, 12, 2.0))
    assert "of plain" in _headline(medusa, None, slower, device)
    assert numbers(_headline(medusa, sized, slower, device)) == [0.83, 2.5, 3.0]
    alone = BesidePlain(run=generation(20, 8, 3.0), plain=None)
    assert numbers(_headline(medusa, None, alone, device)) == [2.5]


def test_of_several_chat_templates_the_default_is_taken(tmp_path):
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "<{{ messages[0].content }}>"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert chat_prompt(tmp_path, "hello") == "<hello>"


def test_a_prompt_takes_the_time_between_two_readings_of_the_clock():
    """A clock that begins at 5 s and moves 2.5 s a reading."""
    clock = itertools.count(5.0, 2.5)
    run = generate(tiny_llama(), [[1, 2]], GenerationSettings(max_new_tokens=2), clock=lambda: next(clock))
    assert (run.prefill_s, run.setup_s, run.decode_s) == (2.5, 0.0, 2.5)


def test_drafts_that_a_look_up_found_are_a_chain_and_the_rest_is_unused():
    """After 1 2 3, which stands there twice, came 4 and 1; a text without a copy has a root alone."""
    drafter = NgramDrafter(length=4, ngram_max=3)
    prompts = [[1, 2, 3, 4, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7]]
    drafter.begin(prompts, 20, [])
    sequences = [Generation(prompt=prompt) for prompt in prompts]
    draft = drafter.propose(torch.tensor([3, 7]), torch.zeros(2, 1), sequences)
    assert draft.tokens.tolist() == [[3, 4, 1, 2, 3], [7, 0, 0, 0, 0]]
    assert [tree.parents for tree in draft.trees] == [[-1, 0, 1, 2, 3], [-1, -1, -1, -1, -1]]
    assert draft.depths.tolist() == [0, 1, 2, 3, 4]
    assert [sequence.found_lengths for sequence in sequences] == [[4], [0]]


@pytest.mark.parametrize(("tied", "vocabularies"), [(True, 1), (False, 2)])
def test_a_decoder_has_as_many_parameters_as_its_matrices_and_norms(tied, vocabularies):
    config, model = tiny_config(tie_word_embeddings=tied), tiny_llama(tie_word_embeddings=tied)
    attention = config.hidden_size * config.head_dim * 2
    attention *= config.num_attention_heads + config.num_key_value_heads
    mlp, norms = 3 * config.hidden_size * config.intermediate_size, 2 * config.hidden_size
    every = config.num_hidden_layers * (attention + mlp + norms) + config.hidden_size
    assert config.parameter_count == every + vocabularies * config.vocab_size * config.hidden_size
    assert config.group_size == config.num_attention_heads // config.num_key_value_heads
    weights = sum(each.numel() for each in set(model.parameters()))
    assert weights == config.parameter_count


@pytest.mark.parametrize(("dtype", "rows"), [("bfloat16", 1), ("bfloat16", 2), ("float32", 1)])
def test_one_row_that_is_computed_twice_is_one_row(dtype, rows):
    generator = torch.Generator().manual_seed(1)
    q, keys, values = (
        torch.randn(1, 2, length, 8, generator=generator).to(getattr(torch, dtype)) for length in (rows, 5, 5)
    )
    out = attend(q, keys, values, None)
    assert out.shape == q.shape
    scores = (q.float() @ keys.float().transpose(-1, -2) / 8**0.5).softmax(-1) @ values.float()
    assert torch.allclose(out.float(), scores, atol=0.02)


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("lab.decoder.config") == {
        "DecoderConfig.max_position_embeddings": 2048,
        "DecoderConfig.rms_norm_eps": 1e-06,
        "DecoderConfig.rope_theta": 10000.0,
        "RopeScaling.factor": 1.0,
        "RopeScaling.low_freq_factor": 1.0,
        "RopeScaling.high_freq_factor": 4.0,
        "RopeScaling.beta_fast": 32.0,
        "RopeScaling.beta_slow": 1.0,
        "_HfConfig.rms_norm_eps": 1e-06,
    }


@pytest.mark.parametrize(("steps", "warmup"), [(3, 1), (20, 4), (200, 40), (4000, 40)])
def test_a_run_warms_up_for_a_fifth_of_its_steps_and_at_most_as_long_as_its_method(tmp_path, steps, warmup):
    recipe = Recipe(method="medusa-1", save=tmp_path, steps=steps, learning_rate=0.5, seed=3)
    found = _settings(recipe)
    assert (found.steps, found.warmup_steps, found.learning_rate, found.seed) == (steps, warmup, 0.5, 3)
