"""Drafts that cost the GPU nothing: looked up in the text, or a bare verification step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter.base import Drafter, Knowledge, Parts, PassWork
from medusa_sim.step.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDrafter(Drafter):
    """Drafts that cost nothing on the GPU: n-gram look-up in the prompt, or a bare verification step."""

    name: ClassVar[str] = "ngram"
    title: ClassVar[str] = "n-gram drafts"
    needs: ClassVar[Knowledge] = "ranks"
    pays_per_draft: ClassVar[bool] = False
    looks_up: ClassVar[bool] = True
    profiles: ClassVar[tuple[str, ...]] = ("ngram-",)
    lender: ClassVar[str] = "typical-ngram"

    @classmethod
    def of(cls, parts: Parts, depth: int, width: int = 1) -> FreeDrafter:
        """Nothing depends on the depth."""
        del parts, depth, width
        return cls()

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Nothing."""
        del model, workload, runtime
        return ()

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Nothing."""
        del model, workload, runtime
        return ()

    def weight_bytes(self, model: Model) -> float:
        """Nothing."""
        del model
        return 0.0

    def kv_bytes_per_token(self, model: Model) -> float:
        """Nothing."""
        del model
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix(FreeDrafter):
    """Suffix decoding (arXiv 2411.04975): a tree of suffixes of prompt and earlier outputs, on the host.

    Drafts are as long as the match promises, so their number varies by request: a count of candidates is the
    mean of the steps that find any, and their share is the match rate.
    """

    name: ClassVar[str] = "suffix"
    title: ClassVar[str] = "suffix drafts"
    profiles: ClassVar[tuple[str, ...]] = ("suffix-",)
    lender: ClassVar[str] = "typical-suffix"
