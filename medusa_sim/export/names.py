"""The one map from our drafting methods to what each engine calls them, and the versions that are known.

A new method is a new row here: a writer asks this map and nothing else which methods its engine has, what
they are called, whether they need a checkpoint and whether their number of drafts may follow the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from medusa_sim.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMethod:
    """A drafting method in an engine.

    name: what the engine calls it. checkpoint: whether the settings name the drafter's weights.
    scheduled: versions in which a schedule by batch is both read and tested for this method; elsewhere the
    engine ignores it, refuses it or is not known to run it. untested: why not, for the reader. parallel: all
    drafts come out of one pass, which the engine has to be told. versions: those that have it (empty: all).
    """

    name: str
    checkpoint: bool
    scheduled: tuple[str, ...] = ()
    untested: str = ""
    parallel: bool = False
    versions: tuple[str, ...] = ()


_VLLM_SCHEDULED = ("0.24", "0.26", "0.32", "0.33")
_VLLM_UNTESTED = "vLLM's documentation tests schedules by batch with EAGLE, EAGLE-3 and DFlash only"
_SGLANG_UNTESTED = "SGLang adapts the steps of EAGLE and EAGLE3 only"
_TENSORRT_UNREAD = "TensorRT-LLM reads no schedule for this method in this version"

METHODS: Mapping[str, Mapping[str, EngineMethod]] = {
    # vllm/config/speculative.py (SpeculativeMethod); docs/features/speculative_decoding/
    # dynamic_speculative_decoding.md; MTP schedules stop the V2 runner: vllm-project/vllm#48494.
    "vllm": {
        "medusa": EngineMethod(name="medusa", checkpoint=True, untested=_VLLM_UNTESTED),
        "eagle": EngineMethod(name="eagle", checkpoint=True, scheduled=_VLLM_SCHEDULED),
        "eagle3": EngineMethod(name="eagle3", checkpoint=True, scheduled=_VLLM_SCHEDULED),
        "mtp": EngineMethod(
            name="mtp",
            checkpoint=False,
            untested=f"{_VLLM_UNTESTED}; with MTP the V2 model runner stops at start (vllm#48494)",
        ),
        "draft-model": EngineMethod(name="draft_model", checkpoint=True, untested=_VLLM_UNTESTED),
        "p-eagle": EngineMethod(name="eagle3", checkpoint=True, untested=_VLLM_UNTESTED, parallel=True),
        "pard": EngineMethod(name="draft_model", checkpoint=True, untested=_VLLM_UNTESTED, parallel=True),
        "dflash": EngineMethod(name="dflash", checkpoint=True, scheduled=_VLLM_SCHEDULED),
        "dspark": EngineMethod(
            name="dspark", checkpoint=True, untested=_VLLM_UNTESTED, versions=("0.32", "0.33")
        ),
        "ngram": EngineMethod(name="ngram", checkpoint=False, untested=_VLLM_UNTESTED),
        "suffix": EngineMethod(name="suffix", checkpoint=False, untested=_VLLM_UNTESTED),
    },
    # docs_new/docs/advanced_features/{speculative_decoding,adaptive_speculative_decoding}.mdx.
    "sglang": {
        "eagle": EngineMethod(name="EAGLE", checkpoint=True, scheduled=("0.5.23",)),
        "eagle3": EngineMethod(name="EAGLE3", checkpoint=True, scheduled=("0.5.23",)),
        "mtp": EngineMethod(name="EAGLE", checkpoint=False, scheduled=("0.5.23",)),
        "draft-model": EngineMethod(name="STANDALONE", checkpoint=True, untested=_SGLANG_UNTESTED),
        "ngram": EngineMethod(name="NGRAM", checkpoint=False, untested=_SGLANG_UNTESTED),
        "dflash": EngineMethod(
            name="DFLASH", checkpoint=True, untested=_SGLANG_UNTESTED, versions=("0.5.23",)
        ),
        "dspark": EngineMethod(
            name="DSPARK", checkpoint=True, untested=_SGLANG_UNTESTED, versions=("0.5.23",)
        ),
    },
    # tensorrt_llm/llmapi/llm_args.py (decoding_type); _torch/speculative: in 1.2 only the drafters that are
    # models of their own and the n-gram pool read a schedule, from 1.3 only one-model drafting does
    # (support_dynamic_draft_len: Eagle3 first, pull request 12262 adds MTP, draft target, PARD, DFlash, SA).
    "tensorrt-llm": {
        "eagle3": EngineMethod(
            name="Eagle3", checkpoint=True, scheduled=("1.3", "1.4"), untested=_TENSORRT_UNREAD
        ),
        "mtp": EngineMethod(name="MTP", checkpoint=False, scheduled=("1.4",), untested=_TENSORRT_UNREAD),
        "draft-model": EngineMethod(
            name="Draft_Target", checkpoint=True, scheduled=("1.2", "1.4"), untested=_TENSORRT_UNREAD
        ),
        "ngram": EngineMethod(name="NGram", checkpoint=False, scheduled=("1.2",), untested=_TENSORRT_UNREAD),
        "pard": EngineMethod(name="PARD", checkpoint=True, scheduled=("1.4",), versions=("1.4",)),
        "dflash": EngineMethod(name="DFlash", checkpoint=True, scheduled=("1.4",), versions=("1.4",)),
        "dspark": EngineMethod(name="DSpark", checkpoint=True, untested=_TENSORRT_UNREAD, versions=("1.4",)),
        "suffix": EngineMethod(name="SA", checkpoint=False, scheduled=("1.4",), versions=("1.4",)),
    },
    # huggingface.co/docs/text-generation-inference, conceptual/speculation, 3.3.
    "tgi": {
        "medusa": EngineMethod(name="medusa", checkpoint=True),
        "ngram": EngineMethod(name="ngram", checkpoint=False),
    },
    # llama.cpp docs/speculative.md (--spec-type).
    "llama-cpp": {
        "eagle3": EngineMethod(name="draft-eagle3", checkpoint=True),
        "mtp": EngineMethod(name="draft-mtp", checkpoint=False),
        "draft-model": EngineMethod(name="draft-simple", checkpoint=True),
        "ngram": EngineMethod(name="ngram-simple", checkpoint=False),
        "dflash": EngineMethod(name="draft-dflash", checkpoint=True, versions=("b10532",)),
    },
}

_WITHOUT = {
    ("sglang", "medusa"): "it was never merged",
    ("tensorrt-llm", "medusa"): "it went with the engine backend",
    ("llama-cpp", "medusa"): "it was never merged",
    ("tensorrt-llm", "eagle"): "checkpoints of EAGLE-1 and 2 are incompatible with its PyTorch backend",
    ("llama-cpp", "eagle"): "it reads EAGLE-3 checkpoints only",
}


def engine_method(engine: str, method: str, version: str) -> EngineMethod:
    """What a version of the engine calls a drafting method.

    Raises UsageError where it has none, and says what to do.
    """
    known = METHODS[engine]
    if method not in known:
        why = _WITHOUT.get((engine, method), "its documentation has none")
        others = [name for name, methods in METHODS.items() if method in methods]
        advice = f"export to {' or '.join(others)}" if others else "choose another drafter"
        if method == "eagle" and "eagle3" in known:
            advice = f"{advice}; with an EAGLE-3 checkpoint say --drafter eagle3"
        if method == "medusa":
            advice = "train an EAGLE-3 or DFlash drafter, which engines serve (vllm still loads Medusa heads)"
        raise UsageError(f"{engine} has no {method} speculation ({why}; it has {', '.join(known)}); {advice}")
    found = known[method]
    if found.versions and version not in found.versions:
        raise UsageError(
            f"{engine} {version} has no {method} speculation; give --engine-version {found.versions[0]}, "
            "which has"
        )
    return found


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions whose settings were read, oldest first, such as `0.24`; `default` is what installs today.

    A version between two of them is written as for the one before it; `ahead` releases (in the second
    number) beyond the newest one as for the newest. None: as many as come.
    """

    engine: str
    known: tuple[str, ...]
    default: str
    ahead: int | None = 2

    def chosen(self, asked: str | None) -> tuple[str, str]:
        """The known version to write for, and a note that is empty where it is the one asked for.

        Raises UsageError for text that is no version, and for versions too far from what is known.
        """
        if asked is None:
            return self.default, ""
        wanted = _numbers(asked)
        if not wanted:
            raise UsageError(f"{self.engine} version {asked!r} is no version; known: {', '.join(self.known)}")
        older = [name for name in self.known if _numbers(name) <= wanted]
        if not older or self._too_new(wanted):
            raise UsageError(
                f"{self.engine} {asked}: its settings are not known (known: {', '.join(self.known)}); their "
                "meaning changes between versions, so check the engine's documentation and edit what the "
                f"nearest known version gives (--engine-version {older[-1] if older else self.known[0]})"
            )
        nearest = older[-1]
        if wanted[: len(_numbers(nearest))] == _numbers(nearest):
            return nearest, ""
        return (
            nearest,
            f"{self.engine} {asked} was not read; written as for {nearest}, the nearest known before it",
        )

    def _too_new(self, wanted: tuple[int, ...]) -> bool:
        newest = _numbers(self.known[-1])
        if self.ahead is None:
            return False
        same_major = wanted[0] == newest[0]
        return not same_major or (len(wanted) > 1 and wanted[1] > newest[1] + self.ahead)


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 24, 1) of `v0.24.1rc2`; empty where the text does not start like a version."""
    found = re.match(r"[vb]?(\d{1,9}(?:\.\d{1,9})*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()
