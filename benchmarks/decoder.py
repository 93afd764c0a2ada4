"""Measure a checkpoint's heads on held-out files, and the tokens per step that they give.

    python benchmarks/decoder.py profiles/checkpoints/python-stdlib-medusa-1 \
        --profile profiles/acceptance/python-stdlib-medusa-1.toml

Prints Markdown. Half of the prompts is continued autoregressively, which gives the head accuracies on the
target's own text (and the profile); the other half is decoded with Medusa, which gives the tokens per step
that they are to predict. Marginal accuracies treat the heads as independent; `joint` scores whole paths at
every position, so that it knows how right guesses come together, and differs from a run only in where steps
start. Prompts come from files that training held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from common.script import command_line
from common.study import table

from medusa_sim.acceptance.heads import (
    NORMAL_90TH,
    HeadAccuracy,
    expected_tokens_per_step,
    optimal_order,
    tokens_per_step_error,
)
from medusa_sim.acceptance.profile import AcceptanceProfile, load_acceptance
from medusa_sim.acceptance.profile_file import HeadRow, HeadTopkFile, encoded_profile
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.lab.decoder.arguments import AcceptanceRule
from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import Generation, GenerationSettings
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.tokenizer import load_tokenizer
from medusa_sim.lab.decoder.training import corpus
from medusa_sim.lab.decoder.training.evaluate import (
    HeadCounts,
    head_counts,
    mean_tokens_per_step,
    next_token_loss,
    text_counts,
    total_counts,
)
from medusa_sim.lab.decoder.trials import acceptance_counts
from medusa_sim.writing import write_text

PROMPT_TOKENS, NEW_TOKENS = 48, 128
DESIGN_SIZES = (4, 16, 64)
RANKS = 32
"""Ranks that are scored: more than any tree of 64 candidates uses."""
RULES: tuple[tuple[AcceptanceRule, float, str], ...] = (
    ("greedy", 0.0, "greedy"),
    ("typical", 0.7, "T 0.7"),
    ("rejection", 0.7, "T 0.7"),
)
"""Rules of acceptance: name, temperature, whose accuracies predict it."""
SETTINGS = partial(GenerationSettings, max_new_tokens=NEW_TOKENS, stop_at_end_of_text=False)


def heldout_windows(checkpoint: Path, count: int, new_tokens: int = 0, seed: int = 1) -> list[list[int]]:
    """So many texts of PROMPT_TOKENS and `new_tokens` tokens that no shipped model was trained on."""
    texts, tokenizer = corpus.read_corpus().heldout, load_tokenizer(checkpoint)
    sizes = {"prompt_tokens": PROMPT_TOKENS, "continuation_tokens": new_tokens}
    return corpus.file_windows(texts, tokenizer, count=count, seed=seed, **sizes)


def _table(rows: pd.DataFrame) -> str:
    cells = rows.map(lambda cell: f"{cell:.4g}" if isinstance(cell, float) else str(cell))
    return table(" | ".join(map(str, cells)), 0, cells.itertuples(index=False))


def write_profile(
    path: Path, name: str, accuracy: HeadAccuracy, effect: float, model_error: float, spread: float | None
) -> None:
    """The acceptance profile of a checkpoint. effect: `design_effect` of its labels."""
    assert accuracy.labels is not None
    rows = zip(accuracy.accuracy.round(6).tolist(), accuracy.labels.tolist(), strict=True)
    file = HeadTopkFile(
        schema=1,
        title=f"Heads of the shipped checkpoint {name} on held-out files of the standard library, greedy",
        source=f"measured by benchmarks/decoder.py on {name}: its own greedy continuations of held-out files",
        agreement="target",
        heads=[HeadRow(accuracy=own, labels=int(count)) for own, count in rows],
        design_effect=round(effect, 2),
        model_error=round(model_error, 3),
        request_spread=None if spread is None else round(spread, 3),
        longest_context=PROMPT_TOKENS + NEW_TOKENS,
    )
    write_text(path, encoded_profile(file))


def fresh_sets(
    model: Llama,
    heads: MedusaHeads,
    checkpoint: Path,
    profile: AcceptanceProfile,
    *,
    seeds: Sequence[int],
    count: int,
    sizes: Sequence[int],
) -> pd.DataFrame:
    """Measured tokens per step on sets of `count` prompts that the profile does not know, and its band."""
    rows = []
    for seed in seeds:
        prompts = heldout_windows(checkpoint, count, seed=seed)
        for size in (n for n in sizes if n > 1):
            tree = profile.tree(size)
            assert tree is not None
            drafter = MedusaDrafter(model, heads, tree)
            measured = mean_tokens_per_step(generate(model, prompts, SETTINGS(), drafter).sequences)
            predicted, (low, high) = float(profile.tokens_per_step(size)), map(float, profile.band(size))
            error, inside = (predicted - 1.0) / (measured - 1.0) - 1.0, int(low <= measured <= high)
            rows.append((seed, size, measured, predicted, low, high, error, inside))
    names = ("seed", "candidates", "measured", "predicted", "low", "high", "error of tokens - 1", "inside")
    return pd.DataFrame(rows, columns=list(names))


def accuracy_rows(tables: dict[str, HeadAccuracy]) -> pd.DataFrame:
    """How often each head is right within its best guesses, by text."""
    rows = []
    for text, found in tables.items():
        labels = np.zeros(found.depth, dtype=int) if found.labels is None else found.labels
        for k, cumulative in enumerate(found.accuracy.cumsum(axis=1)):
            top = {f"top-{n}": float(cumulative[n - 1]) for n in (1, 2, 5, 10)}
            rows.append({"text": text, "head": k, "labels": int(labels[k]), **top})
    return pd.DataFrame(rows)


@torch.inference_mode()
def joint_tokens_per_step(
    model: Llama, heads: MedusaHeads, tree: CandidateTree, sequences: Sequence[Generation]
) -> float:
    """Mean of 1 + the accepted length, had a greedy step started at every position of these texts.

    Positions whose whole tree lies inside the text count.
    """
    total, positions = 0.0, 0
    depths, ranks = torch.from_numpy(tree.depths)[1:], torch.from_numpy(tree.ranks)[1:]
    mask = torch.from_numpy(tree.mask)[1:, 1:]
    for sequence in sequences:
        text = torch.tensor(sequence.prompt + sequence.token_ids)
        first = len(sequence.prompt) - 1
        count = text.numel() - first - 1 - tree.depth
        if count <= 0:
            continue
        hidden = model(text[None])[0, first : first + count]
        best = heads(hidden, model.lm_head).topk(max(tree.ranks_used, 1), dim=-1).indices
        drafted = best[depths - 1, :, ranks]  # (nodes, positions)
        labels = text[first + 1 + depths[:, None] + torch.arange(count)]
        fails = (drafted != labels).float()
        is_kept = mask.float() @ fails == 0.0
        total += float((1 + (is_kept * depths[:, None]).amax(0)).sum())
        positions += count
    return total / positions


def finding(
    model: Llama,
    heads: MedusaHeads,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    tree: CandidateTree,
    accuracy: HeadAccuracy,
    own: Sequence[Generation],
) -> dict[str, object]:
    """One tree under one rule on prompts that neither `accuracy` nor the autoregressive texts `own` know.

    Tokens per step: measured in a run; predicted from marginal accuracies; joint, on `own`.
    `repeated_4grams`: share of 4-grams of the emitted text that occurred before in it.
    """
    run = generate(model, prompts, settings, MedusaDrafter(model, heads, tree))
    shares = [repeated_ngram_share(s.token_ids) for s in run.sequences]
    measured, predicted = mean_tokens_per_step(run.sequences), expected_tokens_per_step(tree, accuracy)
    return {
        "acceptance": settings.applied_rule,
        "temperature": settings.temperature,
        "candidates": tree.candidates,
        "measured": measured,
        "predicted": predicted,
        "joint": joint_tokens_per_step(model, heads, tree, own) if tree.candidates > 1 else 1.0,
        "steps": sum(s.steps for s in run.sequences),
        "repeated_4grams": sum(shares) / len(shares),
        "predicted / measured": predicted / measured,
    }


def repeated_ngram_share(tokens: Sequence[int], size: int = 4) -> float:
    """Share of a text's n-grams that occurred before in it: loops raise acceptance, and this shows them."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def counts_of_texts(
    model: Llama, heads: MedusaHeads, sequences: Sequence[Generation], *, ranks: int
) -> list[HeadCounts]:
    """Counts on what the target itself emitted, text by text."""
    return [
        head_counts(model, heads, s.prompt + s.token_ids, first=len(s.prompt) - 1, ranks=ranks)
        for s in sequences
    ]


def design_effect(each: Sequence[HeadCounts], sizes: Sequence[int]) -> float:
    """Variance of the tokens per step over texts, over the variance that independent labels would have.

    Labels of one text go together: a text that repeats itself is one observation, not a hundred. The
    jackknife over texts, for the best tree of each size; the mean ratio, at least 1.
    """
    total = total_counts(each)
    accuracy = total.accuracy()
    order = optimal_order(accuracy, max(sizes))
    others = [HeadCounts(total.hits - one.hits, total.labels - one.labels).accuracy() for one in each]
    ratios = []
    for size in sizes:
        tree = order.tree(size)
        without = np.array([expected_tokens_per_step(tree, other) for other in others])
        over_texts = (len(each) - 1) * float(without.var())
        over_labels = (tokens_per_step_error(tree, accuracy) / NORMAL_90TH) ** 2
        ratios.append(over_texts / over_labels)
    return max(1.0, float(np.mean(ratios)))


def main() -> None:
    """Run and print."""
    parser = command_line(__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--profile", type=Path, help="write the greedy accuracies as an acceptance profile")
    parser.add_argument("--model-error", type=float, default=0.0, help="of that profile, relative")
    parser.add_argument("--fresh-seeds", type=int, nargs="+", help="count rates on other prompts in its band")
    parser.add_argument("--prompts", type=int, default=64, help="per half")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    given = parser.parse_args()
    target, name = load_checkpoint(given.checkpoint), given.checkpoint.resolve().name
    model, heads = target.model, target.heads
    if heads is None:
        raise SystemExit(f"{given.checkpoint} has no Medusa heads")
    if given.fresh_seeds:
        rows = fresh_sets(
            model, heads, given.checkpoint, load_acceptance(name),
            seeds=given.fresh_seeds, count=given.prompts, sizes=given.sizes,
        )  # fmt: skip
        print(_table(rows))
        print(f"inside the 80 % band: {rows.inside.mean():.0%} of {len(rows)}")
        return
    windows = heldout_windows(given.checkpoint, 2 * given.prompts, NEW_TOKENS)
    prompts = [window[:PROMPT_TOKENS] for window in windows]
    first, second = prompts[0::2], prompts[1::2]
    print(f"held-out loss {next_token_loss(model, windows):.3f} nats per token\n")
    own = {t: generate(model, first, SETTINGS(temperature=t)).sequences for t in (0.0, 0.7)}
    each = {t: counts_of_texts(model, heads, own[t], ranks=RANKS) for t in own}
    effect = design_effect(each[0.0], DESIGN_SIZES)
    print(f"design effect of {len(first)} texts: {effect:.1f}\n")
    given_text = text_counts(model, heads, windows, first=PROMPT_TOKENS - 1, ranks=RANKS)
    counts = {
        "greedy": total_counts(each[0.0]),
        "T 0.7": total_counts(each[0.7]),
        "teacher-forced": given_text,
    }
    tables = {text: count.accuracy() for text, count in counts.items()}
    print(_table(accuracy_rows(tables)))
    if given.profile:
        chain = MedusaDrafter(model, heads, CandidateTree.chain(heads.count))
        spread = acceptance_counts(model, first, SETTINGS(), chain, heads.count).spread
        write_profile(given.profile, name, tables["greedy"], effect, given.model_error, spread)
    rows = pd.DataFrame([
        finding(model, heads, second, SETTINGS(temperature=heat, acceptance_rule=rule),
                optimal_order(tables[text], max(given.sizes)).tree(size), tables[text], own[heat])
        for rule, heat, text in RULES for size in given.sizes
    ])  # fmt: skip
    print(_table(rows))
    order = optimal_order(tables["greedy"], 64)
    forced = expected_tokens_per_step(order.tree(64), tables["teacher-forced"])
    print(f"teacher-forced (product of accuracies on the text itself, 64 candidates): {forced:.3f}\n")


if __name__ == "__main__":
    main()
