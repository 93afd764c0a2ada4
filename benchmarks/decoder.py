"""Measure a checkpoint's heads on held-out files, and the tokens per step that they give.

    python benchmarks/decoder.py profiles/checkpoints/python-stdlib-medusa-1 \
        --profile profiles/acceptance/python-stdlib-medusa-1.toml

Prints Markdown. Half of the prompts gives the head accuracies (and the profile), the other half the
measured tokens per step that they are to predict. Prompts come from files that training held out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import decoder_study as study
from decoder_study import counts_of_texts, design_effect
from scores import table

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step, optimal_order
from medusa_sim.acceptance.profile import AcceptanceProfile, load_acceptance
from medusa_sim.acceptance.profile_file import HeadRow, HeadTopkFile, encoded_profile
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.decoder.arguments import Acceptance
from medusa_sim.decoder.checkpoint import Checkpoint, load_checkpoint
from medusa_sim.decoder.draft import MedusaDrafter
from medusa_sim.decoder.generate import GenerationSettings, generate
from medusa_sim.decoder.heads import MedusaHeads
from medusa_sim.decoder.model import Llama
from medusa_sim.decoder.prompts import load_tokenizer
from medusa_sim.decoder.training import corpus
from medusa_sim.decoder.training.evaluate import mean_tokens_per_step, next_token_loss, total_counts
from medusa_sim.decoder.trials import acceptance_counts
from medusa_sim.writing import write_text

PROMPT_TOKENS, NEW_TOKENS = 48, 128
DESIGN_SIZES = (4, 16, 64)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--profile", type=Path, help="write the greedy accuracies as an acceptance profile")
    parser.add_argument("--model-error", type=float, default=0.0, help="of that profile, relative")
    parser.add_argument("--fresh-seeds", type=int, nargs="+", help="count rates on other prompts in its band")
    parser.add_argument("--prompts", type=int, default=64, help="per half")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    return parser.parse_args()


def _table(rows: list[dict[str, object]]) -> str:
    def written(cell: object) -> str:
        return f"{cell:.4g}" if isinstance(cell, float) else str(cell)

    return table(" | ".join(rows[0]), 0, (tuple(map(written, row.values())) for row in rows))


def _profile(
    accuracy: HeadAccuracy, name: str, effect: float, model_error: float, spread: float | None
) -> str:
    assert accuracy.labels is not None
    rows = [
        HeadRow(accuracy=[round(float(a), 6) for a in row], labels=int(count))
        for row, count in zip(accuracy.accuracy, accuracy.labels, strict=True)
    ]
    file = HeadTopkFile(
        schema=1,
        title=f"Heads of the shipped checkpoint {name} on held-out files of the standard library, greedy",
        source=f"measured by benchmarks/decoder.py on {name}: its own greedy continuations of held-out files",
        agreement="target",
        heads=rows,
        design_effect=round(effect, 2),
        model_error=round(model_error, 3),
        request_spread=None if spread is None else round(spread, 3),
        longest_context=PROMPT_TOKENS + NEW_TOKENS,
    )
    return encoded_profile(file)


def fresh_sets(
    target: Checkpoint,
    texts: corpus.Corpus,
    profile: AcceptanceProfile,
    *,
    seeds: Sequence[int],
    count: int,
    sizes: Sequence[int],
) -> list[dict[str, object]]:
    """Measured tokens per step on sets of `count` prompts that the profile does not know, and its band."""
    assert target.heads is not None
    tokenizer = load_tokenizer(target.path)
    settings = GenerationSettings(max_new_tokens=NEW_TOKENS, stop_at_end_of_text=False)
    rows: list[dict[str, object]] = []
    for seed in seeds:
        prompts = corpus.heldout_prompts(
            texts.heldout, tokenizer, count=count, prompt_tokens=PROMPT_TOKENS, seed=seed
        )
        for size in (n for n in sizes if n > 1):
            tree = profile.tree(size)
            assert tree is not None
            drafter = MedusaDrafter(target.model, target.heads, tree)
            measured = mean_tokens_per_step(generate(target.model, prompts, settings, drafter).sequences)
            predicted, (low, high) = float(profile.tokens_per_step(size)), profile.band(size)
            rows.append(
                {
                    "seed": seed,
                    "candidates": size,
                    "measured": measured,
                    "predicted": predicted,
                    "low": float(low),
                    "high": float(high),
                    "error of tokens - 1": (predicted - 1.0) / (measured - 1.0) - 1.0,
                    "inside": int(low <= measured <= high),
                }
            )
    return rows


def text_spread(model: Llama, heads: MedusaHeads, prompts: list[list[int]]) -> float | None:
    """How far texts differ on the logit of what a chain of all heads accepts, greedy."""
    settings = GenerationSettings(max_new_tokens=NEW_TOKENS, stop_at_end_of_text=False)
    drafter = MedusaDrafter(model, heads, CandidateTree.chain(heads.count))
    return acceptance_counts(model, prompts, settings, drafter, heads.count).spread


def _accuracy_rows(tables: dict[str, HeadAccuracy]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for text, found in tables.items():
        for k in range(found.heads):
            cumulative = found.accuracy[k].cumsum()
            labels = 0 if found.labels is None else int(found.labels[k])
            top = {f"top-{n}": float(cumulative[n - 1]) for n in (1, 2, 5, 10)}
            rows.append({"text": text, "head": k, "labels": labels, **top})
    return rows


def main() -> None:
    """Run and print."""
    given = _arguments()
    target = load_checkpoint(given.checkpoint)
    if target.heads is None:
        raise SystemExit(f"{given.checkpoint} has no Medusa heads")
    texts = corpus.read_corpus()
    tokenizer = load_tokenizer(given.checkpoint)
    windows = corpus.heldout_prompts(
        texts.heldout,
        tokenizer,
        count=2 * given.prompts,
        prompt_tokens=PROMPT_TOKENS,
        continuation_tokens=NEW_TOKENS,
        seed=1,
    )
    prompts = [window[:PROMPT_TOKENS] for window in windows]
    first, second = prompts[0::2], prompts[1::2]
    if given.fresh_seeds:
        rows = fresh_sets(
            target,
            texts,
            load_acceptance(given.checkpoint.resolve().name),
            seeds=given.fresh_seeds,
            count=given.prompts,
            sizes=given.sizes,
        )
        print(_table(rows))
        share = sum(int(str(row["inside"])) for row in rows) / len(rows)
        print(f"inside the 80 % band: {share:.0%} of {len(rows)}")
        return
    print(f"held-out loss {next_token_loss(target.model, windows):.3f} nats per token\n")
    own = {t: study.own_texts(target.model, first, new_tokens=NEW_TOKENS, temperature=t) for t in (0.0, 0.7)}
    each = {t: counts_of_texts(target.model, target.heads, own[t], ranks=study.RANKS) for t in own}
    effect = design_effect(each[0.0], DESIGN_SIZES)
    print(f"design effect of {len(first)} texts: {effect:.1f}\n")
    tables = {
        "greedy": total_counts(each[0.0]).accuracy(),
        "T 0.7": total_counts(each[0.7]).accuracy(),
        "teacher-forced": study.accuracy_on_given_text(
            target, target.heads, windows, prompt_tokens=PROMPT_TOKENS
        ),
    }
    print(_table(_accuracy_rows(tables)))
    if given.profile:
        name = given.checkpoint.resolve().name
        spread = text_spread(target.model, target.heads, first)
        write_text(given.profile, _profile(tables["greedy"], name, effect, given.model_error, spread))
    rows = []
    rules: tuple[tuple[Acceptance, float, str], ...] = (
        ("greedy", 0.0, "greedy"),
        ("typical", 0.7, "T 0.7"),
        ("rejection", 0.7, "T 0.7"),
    )
    for acceptance, temperature, name in rules:
        found = study.findings(
            target,
            target.heads,
            second,
            tables[name],
            own[temperature],
            sizes=given.sizes,
            acceptance=acceptance,
            temperature=temperature,
        )
        rows += [asdict(f) | {"predicted / measured": f.predicted / f.measured} for f in found]
    print(_table(rows))
    order = optimal_order(tables["greedy"], 64)
    forced = expected_tokens_per_step(order.tree(64), tables["teacher-forced"])
    print(f"teacher-forced (product of accuracies on the text itself, 64 candidates): {forced:.3f}\n")


if __name__ == "__main__":
    main()
