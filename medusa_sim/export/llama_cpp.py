"""llama.cpp: one number of drafts as flags of llama-server.

Read in docs/speculative.md and the options of llama-server of builds b9235 (draft-mtp) to b10532. A draft
stops early where its own probability falls below `--spec-draft-p-min`, which is written as it was priced.
"""

from __future__ import annotations

import shlex

from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions


class LlamaCpp(EngineExport):
    """The record of llama.cpp."""

    def write(self, chosen: Chosen) -> str:
        """Flags for llama-server."""
        flags, drafts = ["--spec-type", chosen.method.name], str(chosen.plan.drafts)
        if chosen.draft_path is not None:
            flags += ["--spec-draft-model", chosen.draft_path]
        if chosen.drafter == "ngram":
            flags += ["--spec-ngram-simple-size-m", drafts]
        else:
            p_min = f"{chosen.answer.scenario.arguments.p_min:g}"
            flags += ["--spec-draft-n-max", drafts, "--spec-draft-p-min", p_min]
        return f"{shlex.join(flags)}\n"


LLAMA_CPP = LlamaCpp(
    name="llama-cpp",
    title="llama.cpp",
    versions=Versions("llama-cpp", ("b9235", "b10532"), "b10532", ahead=-1),
    lacks={
        "medusa": "it was never merged",
        "eagle": "it reads EAGLE-3 checkpoints only",
    },
    captures=False,
    idles=False,
    one_number="llama.cpp drafts one number at every batch",
    batch_cap="--parallel",
    length_cap="--ctx-size",
    methods={
        "eagle3": EngineMethod("draft-eagle3", checkpoint=True),
        "mtp": EngineMethod("draft-mtp", checkpoint=False),
        "draft-model": EngineMethod("draft-simple", checkpoint=True),
        "ngram": EngineMethod("ngram-simple", checkpoint=False),
        "dflash": EngineMethod("draft-dflash", checkpoint=True, versions=("b10532",)),
    },
)
