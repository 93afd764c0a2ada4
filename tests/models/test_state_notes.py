"""What engines say of models that keep states: sentences about drafts, and one about look-ups in vLLM."""

import pytest

from medusa_sim.models.named import load_model
from medusa_sim.models.state_rules import state_notes


@pytest.mark.parametrize(
    ("library", "model", "drafter", "lines"),
    [
        ("vllm", "qwen3-next-80b-a3b", "ngram", 2), ("vllm", "qwen3-next-80b-a3b", "mtp", 1),
        ("sglang", "qwen3-next-80b-a3b", "ngram", 1), ("vllm", "nemotron-3-nano-30b-a3b", "ngram", 1),
        ("vllm", "llama-3.1-8b", "ngram", 0), ("none", "qwen3-next-80b-a3b", "ngram", 0),
    ],
)  # fmt: skip
def test_look_ups_in_vllm_corrupt_gated_delta_layers_alone(library, model, drafter, lines):
    assert len(state_notes(library, load_model(model), drafter)) == lines
