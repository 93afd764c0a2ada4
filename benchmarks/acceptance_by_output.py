"""Does the length of outputs change how often drafts are accepted? DeepSeek-R1 as InferenceX served it.

    python benchmarks/acceptance_by_output.py            # two seconds of one core

Tokens of a round follow from mean chunks of a stream (`deepseek_rows`), not from times per token or rates.
One share of every conditional rate of the published profile (real prompts; here they are random) is fitted to
all draft lengths at once. Prints it by stated output length, and what tokens of a round err with the share of
the other GPUs; the shares stand in profiles/acceptance/mtp-deepseek-r1.toml.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from common.script import command_line
from deepseek_rows import STATED_SHARE, drafts_of, newest, tokens_per_round
from scipy.optimize import minimize_scalar

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.arrays import FloatArray

RATES = np.diff(load_acceptance("mtp-deepseek-r1").tokens_per_step(np.arange(1, 7)))
"""How often the first, second, ... draft is accepted, as published."""


def rounds() -> pd.DataFrame:
    """Rows with MTP whose chunks were averaged, with `drafts` and `tokens` of a round."""
    rows = newest()
    rows = rows[(rows.speculation == "mtp") & rows.mean_itl_ms.notna()]
    drafts = [drafts_of(*cell) for cell in zip(rows.engine, rows.dp_attention, strict=True)]
    return rows.assign(drafts=drafts, tokens=tokens_per_round(rows))


def errors(share: float, rows: pd.DataFrame) -> FloatArray:
    """Of tokens of a round, where every conditional rate is this share of the published one."""
    reached = RATES * share ** np.arange(1, RATES.size + 1)
    return np.asarray((1.0 + np.cumsum(reached)[rows.drafts.to_numpy() - 1]) / rows.tokens - 1.0)


def fitted(rows: pd.DataFrame) -> float:
    """The share of least squares of relative errors; every draft length counts alike."""
    weight = 1.0 / rows.drafts.map(rows.drafts.value_counts())
    found = minimize_scalar(lambda x: float((weight * errors(x, rows) ** 2).sum()), bounds=(0.3, 1.2))
    return float(found.x)


def main() -> None:
    """Print shares by output length, and errors with each GPU held out."""
    command_line(__doc__).parse_args()
    for length, part in rounds().groupby("output_tokens"):
        told = f"outputs of {STATED_SHARE * float(str(length)):.0f} tokens"
        print(f"{told}: share {fitted(part):.2f}, {len(part)} cells")
        for card, own in part.groupby("gpu"):
            others = part[part.gpu != card]
            shares = {"published": 1.0, "fitted": fitted(part)}
            shares |= {"held out": fitted(others)} if len(others) else {}
            for name, share in shares.items():
                error = errors(share, own)
                size = np.abs(error)
                print(
                    f"  {card}, {len(own)} cells, {name} ({share:.2f}): tokens of a round off by "
                    f"{size.mean():.1%}, bias {error.mean():+.1%}, worst {size.max():.1%}"
                )


if __name__ == "__main__":
    main()
