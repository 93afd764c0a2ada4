"""Drafters that cost the GPU nothing: drafts are looked up in the text, or there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.base import Drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDrafter(Drafter):
    """Drafts that cost nothing on the GPU: n-gram look-up in the prompt, or a bare verification step."""

    name: ClassVar[DrafterName] = "ngram"
    title = "n-gram drafts"
    pays_per_draft = False
    looks_up = True
    falls_as = ""
    profiles = ("ngram-",)
    lender = "typical-ngram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix(FreeDrafter):
    """Suffix decoding (arXiv 2411.04975): a tree of suffixes of prompt and earlier outputs, on the host.

    Drafts are as long as the match promises, so their number varies by request: a count of candidates is the
    mean of the steps that find any, and their share is the match rate.
    """

    name: ClassVar[DrafterName] = "suffix"
    title = "suffix drafts"
    profiles = ("suffix-",)
    lender = "typical-suffix"
