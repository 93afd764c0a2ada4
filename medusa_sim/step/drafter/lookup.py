"""Drafters that cost the GPU nothing: drafts are looked up in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.base import Drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class NGram(Drafter):
    """N-gram look-up: what followed the last tokens where they stood before, in the prompt or the output."""

    name: ClassVar[DrafterName] = "ngram"
    title = "n-gram drafts"
    pays_per_draft = False
    looks_up = True
    falls_as = ""
    profiles = ("ngram-",)
    lender = "typical-ngram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix(NGram):
    """Suffix decoding (arXiv 2411.04975): a tree of suffixes of prompt and earlier outputs, on the host.

    Drafts are as long as the match promises, so their number varies by request: a count of candidates is the
    mean of the steps that find any, and their share is the match rate.
    """

    name: ClassVar[DrafterName] = "suffix"
    title = "suffix drafts"
    profiles = ("suffix-",)
    lender = "typical-suffix"
