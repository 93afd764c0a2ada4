"""llama.cpp: one number of drafts as flags of llama-server.

Read in docs/speculative.md and the options of llama-server of builds b9235 (draft-mtp) to b10734, which
brought synthetic acceptance (pull request 27711: rates of positions, unconditional, as many as drafts). A
draft stops early where its own probability falls below `--spec-draft-p-min`, which is written as it was
priced.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from medusa_sim.errors import UsageError
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions

_SYNTHETIC = "b10734"
_DIGITS = 4
"""Of synthetic acceptance rates."""
_MATCH = 3
"""Tokens of a match that is looked up, among the 2 to 5 of vLLM, whose look-ups told what is accepted."""


class LlamaCpp(EngineExport):
    """The record of llama.cpp."""

    def write(self, chosen: Chosen) -> str:
        """Flags for llama-server."""
        flags, drafts = ["--spec-type", chosen.method.name], str(chosen.plan.drafts)
        if chosen.draft_path is not None:
            flags += ["--spec-draft-model", chosen.draft_path]
        if chosen.drafter == "ngram":
            flags += ["--spec-ngram-simple-size-n", str(_MATCH), "--spec-ngram-simple-size-m", drafts]
        else:
            p_min = f"{chosen.answer.scenario.arguments.p_min:g}"
            flags += ["--spec-draft-n-max", drafts, "--spec-draft-p-min", p_min]
        return f"{shlex.join(flags)}\n"

    def notes(self, chosen: Chosen) -> Iterator[str]:
        """Notes on single methods."""
        if chosen.drafter == "ngram":
            yield f"matches of {_MATCH} tokens are looked up; the engine's own default, 12, finds far fewer"

    def synthetic(self, chosen: Chosen, length: float) -> Iterator[str]:
        """`--spec-synth-rates` takes unconditional rates by position.

        Raises UsageError for builds without it, several requests (the timings of a response are those of one)
        and drafts that end early, which it does not fake.
        """
        del length
        plan, p_min = chosen.plan, chosen.answer.scenario.arguments.p_min
        if chosen.version != _SYNTHETIC:
            raise UsageError(
                f"--ab: llama.cpp forces acceptance from {_SYNTHETIC} on, not in {chosen.version}"
            )
        if plan.grid.searched_to > 1:
            raise UsageError("--ab checks llama.cpp with one request at a time; give --batch 1")
        if p_min > 0.0:
            raise UsageError(
                f"--ab forces whole drafts, which --p-min {p_min:g} ends early; leave --p-min out"
            )
        rates = ",".join(f"{round(rate, _DIGITS):g}" for rate in plan.rates)
        yield f"{self.server(chosen)} --spec-synth-rates {rates} {self.write(chosen).rstrip()} &"


LLAMA_CPP = LlamaCpp(
    name="llama-cpp",
    title="llama.cpp",
    versions=Versions("llama-cpp", ("b9235", "b10532", _SYNTHETIC), _SYNTHETIC, ahead=-1),
    missing_methods={
        "medusa": "it was never merged",
        "eagle": "it reads EAGLE-3 checkpoints only",
    },
    has_known_graphs=False,
    idle_drafter_costs=False,
    why_one_number="llama.cpp drafts one number at every batch",
    batch_option="--parallel",
    length_option="--ctx-size",
    serve_command='llama-server --model "$MODEL" --parallel 1',
    port=8080,
    bench_command=(
        "python3 -c 'import json; print(json.dumps(dict(prompt=list(range(1000, 1000 + {prompt})), "
        "n_predict={output}, ignore_eos=True, cache_prompt=False)))' > request.json\n"
        "for i in 1 2 3 4; do curl -s http://127.0.0.1:{port}/completion -d @request.json; echo; done "
        "> {name}.jsonl"
    ),
    never_synthetic=("ngram",),
    synthetic_by_position=True,
    is_local=True,
    methods={
        "eagle3": EngineMethod("draft-eagle3", checkpoint=True),
        "mtp": EngineMethod("draft-mtp", checkpoint=False),
        "draft-model": EngineMethod("draft-simple", checkpoint=True),
        "ngram": EngineMethod("ngram-simple", checkpoint=False),
        "dflash": EngineMethod("draft-dflash", checkpoint=True, versions=("b10532", _SYNTHETIC)),
    },
)
