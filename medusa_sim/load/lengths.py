"""Lengths of prompts and outputs, drawn around their means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError
from medusa_sim.scenario.defaults import LENGTH_CV, LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of prompts and outputs: log-normal around a mean, with a coefficient of variation (0: equal).

    Drawn lengths are whole numbers from 1, and shortened where prompt and output exceed `most` tokens.
    """

    prompt_tokens: float = LOAD_PROMPT_TOKENS
    output_tokens: float = LOAD_OUTPUT_TOKENS
    prompt_cv: float = LENGTH_CV
    output_cv: float = LENGTH_CV

    def drawn(self, count: int, seed: int, most: int | None = None) -> tuple[IntArray, IntArray, int]:
        """(prompt_tokens, output_tokens, how many were shortened), the first two (count,).

        Raises UsageError where even the means do not fit into `most` tokens.
        """
        if most is not None and self.prompt_tokens + self.output_tokens > most:
            raise UsageError(
                f"requests of {self.prompt_tokens:.10g} prompt and {self.output_tokens:.10g} output tokens "
                f"on average do not fit: model and KV cache hold {most} tokens of one request; ask for "
                "shorter ones, or choose another model or GPU"
            )
        random = np.random.default_rng([seed, 1])
        prompt = _log_normal(random, self.prompt_tokens, self.prompt_cv, count)
        output = _log_normal(random, self.output_tokens, self.output_cv, count)
        cut = 0
        if most is not None:
            cut = int((prompt + output > most).sum())
            prompt = np.minimum(prompt, max(most - 1, 1))
            output = np.minimum(output, np.maximum(most - prompt, 1))
        return prompt, output, cut


def _log_normal(random: np.random.Generator, mean: float, cv: float, count: int) -> IntArray:
    variance = np.log1p(cv**2)
    normal = random.standard_normal(count)
    drawn = mean * np.exp(np.sqrt(variance) * normal - variance / 2.0)
    return np.asarray(np.maximum(np.rint(drawn), 1.0), dtype=np.int64)
