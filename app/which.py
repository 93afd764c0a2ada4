"""Cached calls of the page Which GPU?: the set-ups of a target, priced once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import streamlit as st
from answers import data_version, published_model
from chosen import SetUp

from medusa_sim.plan import DEFAULT_GPU, DEFAULT_SEQ_LEN
from medusa_sim.setups.choices import Choices, prices_of
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURE, Measure, Question
from medusa_sim.setups.search import compare, refined
from medusa_sim.setups.setup import PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuestion:
    """What the page Which GPU? asks: target, traffic, and what may be chosen; target: tokens/s a user.

    prices: as `--price` takes them; empty: as listed.
    """

    target: int
    prompt_tokens: int
    output_tokens: int
    measure: str
    gpus: tuple[str, ...]
    counts: tuple[int, ...]
    engines: tuple[str, ...]
    weight_dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...] = ()
    sure: float = SURE
    users: int | None = None
    prices: str = ""

    def options(self, set_up: SetUp) -> list[str]:
        """The same as options of `medusa-sim compare`."""
        lists = {
            "--gpu": self.gpus, "--gpus": self.counts, "--engine": self.engines,
            "--weight-dtype": self.weight_dtypes, "--drafter": (PLAIN, set_up.drafter),
        }  # fmt: skip
        given = ["--model", set_up.model_given]
        lists |= {"--kv-dtype": self.kv_dtypes} if self.kv_dtypes else {}
        given += [word for name, values in lists.items() for word in (name, ",".join(map(str, values)))]
        numbers = {
            "--prompt-tokens": self.prompt_tokens, "--output-tokens": self.output_tokens,
            "--tokens-per-s-per-user": self.target, "--measure": self.measure,
            "--acceptance": set_up.acceptance, "--draft-model": set_up.draft_model,
            "--sure": self.sure if self.sure != SURE else None, "--users": self.users, "--price": self.prices,
        }  # fmt: skip
        return given + [word for name, value in numbers.items() if value for word in (name, str(value))]


def set_ups_for(
    set_up: SetUp, asked: CompareQuestion, advance: Callable[[int, int], None] | None = None
) -> Comparison:
    """`medusa-sim compare` with the set-up's model, drafter and acceptance; advance as in `load`.

    Another target or certainty, or something else to save, is answered from what was priced before.
    """
    # The sidebar's card, context and engine make no other question.
    alike = dataclasses.replace(set_up, gpu=DEFAULT_GPU, seq_len=DEFAULT_SEQ_LEN, tp=1, ep=1, engine="")
    kept = _set_ups_for(alike, dataclasses.replace(asked, target=0, measure="", sure=0.0), data_version())
    if not kept:
        given: dict[str, Any] = {"acceptance": set_up.acceptance, "draft_model": set_up.draft_model}
        kept.append(
            compare(
                published_model(set_up),
                Question(
                    prompt_tokens=asked.prompt_tokens, output_tokens=asked.output_tokens, users=asked.users
                ),
                Choices(
                    gpus=asked.gpus,
                    counts=asked.counts,
                    engines=asked.engines,
                    weight_dtypes=asked.weight_dtypes,
                    kv_dtypes=asked.kv_dtypes or None,
                    drafters=(PLAIN, set_up.drafter),
                ),
                prices=prices_of(asked.prices or None),
                advance=advance,
                **{name: value for name, value in given.items() if value is not None},
            )
        )
    measure = cast(Measure, asked.measure)
    comparison = kept[0].for_target(measure, tokens_per_s_per_user=float(asked.target), sure=asked.sure)
    return refined(comparison)


@st.cache_resource(max_entries=16, show_spinner=False)
def _set_ups_for(set_up: SetUp, asked: CompareQuestion, version: float) -> list[Comparison]:
    """Where an answer is kept, as `_load`."""
    return []
