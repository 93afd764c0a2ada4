"""A widened checkpoint is another size of the same function: logits and guesses are those of the first."""

from pathlib import Path

import pytest
import torch
from decoder_models import tiny_heads, tiny_llama
from widened import widened

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.checkpoint import Checkpoint


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_a_widened_model_computes_what_the_first_one_does(times, tied):
    model = tiny_llama(tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    heads = tiny_heads(model)
    wide, wide_heads = widened(Checkpoint(model, heads, Path("given")), times)
    tokens = torch.arange(12)[None] % 13
    hidden, wide_hidden = model(tokens), wide(tokens)
    assert wide.config.hidden_size == times * model.config.hidden_size
    assert wide.config.group_size == model.config.group_size
    torch.testing.assert_close(wide.logits(wide_hidden), model.logits(hidden))
    torch.testing.assert_close(wide_heads(wide_hidden, wide.lm_head), heads(hidden, model.lm_head))
    inner = sum(each.numel() for each in model.model.layers.parameters() if each.dim() == 2)
    assert sum(each.numel() for each in wide.model.layers.parameters() if each.dim() == 2) == times**2 * inner


def test_heads_that_share_the_output_layer_are_refused():
    model = tiny_llama()
    with pytest.raises(UsageError, match="share the LM head"):
        widened(Checkpoint(model, tiny_heads(model, own_output=False), Path("given")), 2)
