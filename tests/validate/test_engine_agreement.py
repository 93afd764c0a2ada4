"""Chains scored on plain texts are the chains of a run."""

import pytest

torch = pytest.importorskip("torch")

import agreement  # noqa: E402
from decoder_models import tiny_llama  # noqa: E402

from medusa_sim.decoder.draft import TreeDrafter  # noqa: E402
from medusa_sim.decoder.generate import GenerationSettings, generate  # noqa: E402

LENGTH, NEW_TOKENS = 4, 40


def test_the_earliest_copy_of_the_longest_ending_is_continued():
    continuation = agreement.earliest_continuation
    assert continuation([7, 1, 2, 3, 7, 1, 9, 7, 1], 2, (1, 3)) == [2, 3]
    assert continuation([1, 5, 8, 1, 6, 5, 8, 1], 3, (1, 3)) == [6, 5, 8]
    assert continuation([1, 2, 3], 3, (1, 3)) == []
    assert continuation([4, 4], 3, (1, 3)) == [4]
    assert continuation([1, 2, 1], 3, (2, 3)) == []


@pytest.mark.parametrize("method", ["draft", "ngram"])
def test_walking_along_a_plain_text_takes_the_steps_of_a_run(method):
    target, draft = tiny_llama(seed=1), tiny_llama(seed=1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    prompts = [[1, 2, 3, 4, 1, 2], [5, 6, 7, 5, 6, 7]]
    settings = GenerationSettings(max_new_tokens=NEW_TOKENS, stop_at_end_of_text=False)
    texts = [s.prompt + s.token_ids for s in generate(target, prompts, settings).sequences]
    if method == "draft":
        drafter = TreeDrafter(draft, [1] * LENGTH, temperature=0.0, independent=True, rule="multi-round")
        walked = agreement.walked_draft(draft, texts, len(prompts[0]), LENGTH)
    else:
        drafter = agreement.EarliestNgram(length=LENGTH, ngram_max=3)
        walked = agreement.walked_lookup(texts, len(prompts[0]), LENGTH, (1, 3))
    run = [s.accepted_lengths for s in generate(target, prompts, settings, drafter).sequences]
    assert [steps[:-1] for steps in walked] == [steps[:-1] for steps in run]
    assert sum(map(sum, run)) > 0
    rows = agreement.chain_rows(method, "decoder", run, length=LENGTH)
    assert [row["position"] for row in rows] == list(range(1, LENGTH + 1))
    shares = [row["share"] for row in rows]
    assert shares == sorted(shares, reverse=True)
