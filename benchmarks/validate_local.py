"""llama.cpp beside the simulator on this machine: `make validate-local`, fifteen minutes on two free cores.

    python benchmarks/validate_local.py OUT --engine .venv-llama
    python benchmarks/validate_local.py OUT --engine .venv-llama --small     # two minutes
    python benchmarks/validate_local.py OUT --score            # what OUT/record.json says, again

Models of this project (the trained pair that it ships, and a pair of random weights that often agrees) become
GGUF files in several types. Of each file a handful of rows is measured as `recommend --ask-bench` asks for
them; from these, and nothing else of this machine, follow predictions (OUT/predicted.json, written before
anything else is measured): passes of 1 to 32 tokens at two depths, and speedups with a draft model and with
n-grams at the acceptance that the engine counts on these prompts. Then all of it is measured, in passes that
take turns. Exit 3 where the machine was too busy to judge, texts differ, or a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from common.llama_runs import OPTIONS, QUIET_SHARE, Text, bench, continued, has_clock, passes, plain, run
from common.local_page import Record, Round, Verification, draw, page
from common.near_ties import part_at_tie
from common.script import ROOT, command_line, ends_in_a_line
from decoder import PROMPT_TOKENS, heldout_windows

from medusa_sim.api import Scenario
from medusa_sim.lab.decoder.tokenizer import load_tokenizer
from medusa_sim.scenario.local_correction import pass_times
from medusa_sim.scenario.local_rows import LocalRow, bench_command
from medusa_sim.writing import write_text

CHECKPOINTS = ROOT / "profiles" / "checkpoints"
TARGET, DRAFT = "python-stdlib-medusa-1", "python-stdlib-draft"
RANDOM, LAYERS = "llama-110m", 2
"""The random target, and how many of its layers draft for it."""
RUNTIME, GPU = "llama.cpp-cpu", "cpu-epyc-one-core"
COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32)
ASKED = (1, 2, 4, 8, 16)
"""Of the command that `--ask-bench` prints."""
DEPTHS = (0, 512)
DRAFTS = (1, 2, 3, 4, 6, 8)
REPEATS = 3
"""Of a run that is compared, where its clock runs while it waits; the quickest counts."""
AGAIN = 2
"""Of a run that had to wait for a core."""


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", type=Path, default=ROOT / ".venv-llama", help="where llama.cpp was built")
    parser.add_argument("--gpu", default=GPU, help="device whose prior the rows correct")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passes", type=int, default=3, help="over all counts and files")
    parser.add_argument(
        "--prompts", type=int, default=12, help="of the trained pair; a quarter for the random one"
    )
    parser.add_argument("--small", action="store_true", help="fewer files, passes and prompts")
    parser.add_argument("--score", action="store_true", help="print what the record of an earlier run says")
    parser.add_argument("--picture", type=Path, help="where the curves of the random model are drawn")
    parser.add_argument("--fail-above", type=float, default=10.0, help="mean error in per cent")
    return parser.parse_args()


class Files:
    """Models as GGUF files of several types, and the prompts."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.engine = given, given.engine
        self.folder: Path = given.folder / "work"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.forms = {
            "trained": ("F16", "Q8_0") if given.small else ("F16", "Q8_0", "Q4_0"),
            "random": ("Q8_0", "Q4_0") if given.small else ("F16", "Q8_0", "Q4_0", "Q4_K_M"),
        }
        self.pairs = [("trained", "F16"), ("random", "Q8_0")]
        if not given.small:
            self.pairs += [("trained", "Q8_0"), ("random", "Q4_0")]

    def path(self, name: str, form: str) -> Path:
        """Of a model in a type."""
        return self.folder / f"{name}-{form}.gguf"

    def write(self) -> None:
        """Every file that is not there yet."""
        vocabulary = next(self.engine.glob("source/vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf"), None)
        shape = {
            "config": str(ROOT / "benchmarks" / "models" / RANDOM), "vocabulary": str(vocabulary), "seed": 1,
            "quiet_from": LAYERS,
        }  # fmt: skip
        plans: dict[str, dict[str, Any]] = {
            "trained": {"config": str(CHECKPOINTS / TARGET), "checkpoint": True},
            "trained-draft": {"config": str(CHECKPOINTS / DRAFT), "checkpoint": True},
            "random": shape,
            "random-draft": {**shape, "layers": LAYERS},
        }
        wanted = [
            {**plan, "file": str(self.path(name, "F16"))}
            for name, plan in plans.items()
            if not self.path(name, "F16").exists()
        ]
        if wanted:
            listed = self.folder / "files.json"
            listed.write_text(json.dumps(wanted), encoding="utf-8")
            script = ROOT / "benchmarks" / "engine" / "write_gguf.py"
            python = self.engine / "bin" / "python"
            subprocess.run([str(python), str(script), str(listed)], check=True)
        for name, form in [
            *((name, form) for name, forms in self.forms.items() for form in forms),
            *((f"{name}-draft", form) for name, form in self.pairs),
        ]:
            if not (path := self.path(name, form)).exists():
                run(self.engine, "llama-quantize", (self.path(name, "F16"), path, form, 1), 1)

    def prompts(self, name: str) -> list[Path]:
        """Held-out texts."""
        count = self.given.prompts if name == "trained" else max(2, self.given.prompts // 4)
        root = CHECKPOINTS / TARGET
        tokenizer = load_tokenizer(root)
        paths = []
        for index, window in enumerate(heldout_windows(root, count, PROMPT_TOKENS)):
            path = self.folder / f"prompt-{index}.txt"
            path.write_text(tokenizer.decode(window[:PROMPT_TOKENS]).strip() or "import os", encoding="utf-8")
            paths.append(path)
        return paths


class Machine:
    """Runs on this machine; those that had to wait for a core are run again, and counted."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.runs, self.waited = 0, 0

    def bench(self, model: Path, columns: tuple[int, ...], depths: tuple[int, ...], **more: Any) -> list[Any]:
        """llama-bench's JSON; without a clock of its own of the quietest of a few tries."""
        tries = 1 if has_clock(self.given.engine, self.given.threads) else 1 + AGAIN
        best: tuple[float, list[Any]] = (0.0, [])
        for _ in range(tries):
            rows, share = bench(self.given.engine, model, columns, depths, threads=self.given.threads, **more)
            self.runs += 1
            best = max(best, (share, rows), key=lambda each: each[0])
            if share >= QUIET_SHARE:
                break
            self.waited += 1
        return best[1]

    def texts(
        self, model: Path, prompt: Path, tokens: int, options: dict[tuple[str, int], tuple[object, ...]]
    ) -> dict[tuple[str, int], Text]:
        """A prompt continued in every way, the quickest of runs that take turns: neighbours only slow."""
        best: dict[tuple[str, int], Text] = {}
        for _ in range(1 if has_clock(self.given.engine, self.given.threads) else REPEATS):
            for way, each in options.items():
                found = continued(self.given.engine, model, prompt, tokens, each, self.given.threads)
                self.runs += 1
                self.waited += found.share < QUIET_SHARE
                best[way] = min(best.get(way, found), found, key=lambda text: text.seconds)
        return best


def ask(machine: Machine, files: Files) -> dict[str, Path]:
    """The rows that a user would paste, of each file."""
    pastes = {}
    for name, forms in files.forms.items():
        for form in forms:
            path = files.folder / f"bench-{name}-{form}.json"
            rows = machine.bench(files.path(name, form), ASKED, (0,), made=64, repeats=5)
            path.write_text(json.dumps(rows), encoding="utf-8")
            pastes[f"{name}-{form}"] = path
    return pastes


def predicted_passes(given: argparse.Namespace, files: Files, pastes: dict[str, Path]) -> list[Verification]:
    """Passes of every count and depth, with the rows of each file and without."""
    found = []
    for name, forms in files.forms.items():
        for form in forms:
            both = []
            for bench_file in (pastes[f"{name}-{form}"], None):
                scenario = Scenario(
                    gpu=given.gpu, runtime=RUNTIME, model=str(files.path(name, form)), drafter="ngram",
                    acceptance=0.5, bench=bench_file,
                )  # fmt: skip
                rows = [
                    LocalRow(columns=m, depth=max(1, depth), time_us=1.0) for depth in DEPTHS for m in COLUMNS
                ]
                both.append(pass_times(scenario.latency, scenario.model, scenario.runtime, rows) / 1e3)  # type: ignore[arg-type]
            at_each = [(depth, m) for depth in DEPTHS for m in COLUMNS]
            for (depth, m), own, prior in zip(at_each, *both, strict=True):
                found.append(Verification(name, form, depth, m, float(own), float(prior)))
    return found


def measured_passes(machine: Machine, files: Files, predicted: list[Verification]) -> list[Verification]:
    """The same, measured: the median over passes of the least of each; neighbours only slow."""
    samples: dict[tuple[str, str, int, int], list[float]] = {}
    for turn in range(machine.given.passes):
        for name, forms in files.forms.items():
            for form in forms:
                columns = COLUMNS if turn % 2 == 0 else COLUMNS[::-1]
                for each in passes(machine.bench(files.path(name, form), columns, DEPTHS, repeats=3)):
                    key = (name, form, each.depth, each.columns)
                    samples.setdefault(key, []).append(min(each.samples_ms))
    return [
        each._replace(measured_ms=float(np.median(samples[each[:4]])), samples_ms=tuple(samples[each[:4]]))
        for each in predicted
    ]


def ways(drafts: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Every way of drafting, and how many drafts."""
    for way in ("draft-model", "ngram"):
        for count in drafts:
            yield way, count


class Counted(NamedTuple):
    """What the engine counts of a way of drafting.

    share: of the rounds with drafts. drafts: of such a round on average; a look-up may find fewer than asked
    for. rates: shares of such rounds that accept the first, second, ...
    """

    share: float
    drafts: float
    rates: tuple[float, ...]


def acceptance(
    machine: Machine, files: Files, name: str, form: str, prompts: list[Path]
) -> dict[tuple[str, int], Counted]:
    """By way of drafting and drafts asked for, counted before anything is timed.

    The longest draft tells of shorter ones what a draft model does; a look-up is asked at each length.
    """
    found: dict[tuple[str, int], Counted] = {}
    tokens, (drafts, threads) = length_of(name), (DRAFTS, machine.given.threads)
    target, draft = files.path(name, form), files.path(f"{name}-draft", form)
    for way, count in ways(drafts):
        if way == "draft-model" and count < max(drafts):
            continue
        texts = [
            continued(machine.given.engine, target, prompt, tokens, OPTIONS[way](count, draft), threads)
            for prompt in prompts
        ]
        rounds, with_drafts = sum(t.rounds for t in texts), sum(t.found for t in texts)
        accepted = np.zeros(count)
        for text in texts:
            own = np.asarray(text.by_position[:count])
            accepted[: own.size] += text.found * own
        rates = tuple(float(rate) for rate in accepted / max(with_drafts, 1))
        mean = sum(t.drafted for t in texts) / max(with_drafts, 1)
        for each in drafts if way == "draft-model" else (count,):
            own_mean = float(each) if way == "draft-model" else mean
            found[way, each] = Counted(min(1.0, with_drafts / max(rounds, 1)), own_mean, rates[:each])
    return found


def length_of(name: str) -> int:
    """Tokens that a prompt is continued by."""
    return 128 if name == "trained" else 64


def predicted_rounds(
    given: argparse.Namespace, machine: Machine, files: Files, pastes: dict[str, Path]
) -> list[Round]:
    """Speedups of every pair and way of drafting, from the file's own rows and what is accepted."""
    found = []
    for name, form in files.pairs:
        prompts = files.prompts(name)
        known = acceptance(machine, files, name, form, prompts)
        depth = PROMPT_TOKENS + length_of(name) // 2
        for (way, drafts), (share, mean, rates) in sorted(known.items()):
            if not rates or rates[0] <= 0.0:
                continue
            more: dict[str, Any] = {"match_rate": share} if way == "ngram" else {
                "draft_model": str(files.path(f"{name}-draft", form))
            }  # fmt: skip
            steps = [max(rate * share if way == "ngram" else rate, 1e-6) for rate in rates]
            scenario = Scenario(
                gpu=given.gpu, runtime=RUNTIME, model=str(files.path(name, form)), drafter=way,
                acceptance=np.minimum.accumulate(steps).tolist(), bench=pastes[f"{name}-{form}"],
                max_drafts=drafts, **more,
            )  # fmt: skip
            rows = scenario.sweep(1, depth, sorted({int(mean) + 1, min(int(mean) + 2, drafts + 1)}))
            round_us = float(np.interp(mean + 1.0, rows["candidates"], rows["verify_step_us"]))
            tokens = 1.0 + float(sum(np.minimum.accumulate(steps)))
            gain = tokens * float(rows["decode_step_us"].iloc[0]) / round_us
            found.append(Round(name, form, way, drafts, gain, tokens))
    return found


class Parted(NamedTuple):
    """Names of runs whose text is not that of plain decoding: by a fault, or between equally good tokens."""

    faults: list[str]
    ties: list[str]


def measured_rounds(machine: Machine, files: Files, predicted: list[Round]) -> tuple[list[Round], Parted]:
    """Measured speedups, plain runs in turn with the others, and the texts that differ."""
    found, parted = [], Parted([], [])
    for name, form in files.pairs:
        target, draft = files.path(name, form), files.path(f"{name}-draft", form)
        prompts = files.prompts(name)
        own = [each for each in predicted if each[:2] == (name, form)]
        options = {("plain", 0): OPTIONS["plain"](0, draft)}
        options |= {(each.way, each.drafts): OPTIONS[each.way](each.drafts, draft) for each in own}
        totals: dict[tuple[str, int], list[Text]] = {}
        for prompt in prompts:
            texts_of = machine.texts(target, prompt, length_of(name), options)
            usual = texts_of["plain", 0].text
            others = {f"{way} with {drafts} drafts": text.text for (way, drafts), text in texts_of.items()}
            others["two programs without drafts"] = plain(
                machine.given.engine, target, prompt, length_of(name), machine.given.threads
            )
            for way, text in texts_of.items():
                totals.setdefault(way, []).append(text)
            for way_told, other in others.items():
                if not same(usual, other):
                    is_tie = (name, form) == ("trained", "F16") and part_at_tie(
                        CHECKPOINTS / TARGET, prompt.read_text(encoding="utf-8"), usual, other
                    )
                    names = parted.ties if is_tie else parted.faults
                    names.append(f"{name} {form} {prompt.stem}: {way_told}")
        for each in own:
            texts, usual_texts = totals[each.way, each.drafts], totals["plain", 0]
            speeds = [
                sum(t.tokens for t in some) / sum(t.seconds for t in some) for some in (texts, usual_texts)
            ]
            found.append(
                each._replace(
                    measured=speeds[0] / speeds[1],
                    measured_tokens=sum(t.tokens for t in texts) / max(sum(t.rounds for t in texts), 1),
                )
            )
    return found, parted


def same(one: str, other: str) -> bool:
    """Whether one text holds the other but for its end: a last round may emit more than was asked for.

    A program may write the prompt before it.
    """
    short, whole = sorted((one.strip(), other.strip()), key=len)
    core = short[: len(short) - _LAST_LETTERS]
    return bool(short) and (core in whole if core else whole.startswith(short))


_LAST_LETTERS = 16


def main() -> None:
    """Write, ask, predict, measure, compare."""
    given = _arguments()
    kept = given.folder / "record.json"
    if given.score:
        record = msgspec.json.decode(kept.read_bytes(), type=Record)
    else:
        if not (given.engine / "build" / "bin" / "llama-bench").exists():
            raise SystemExit(f"Error: {given.engine} has no llama.cpp; `make validate-local` builds it")
        if given.small:
            given.passes, given.prompts = 2, 4
        record = compared(given)
        write_text(kept, msgspec.json.format(msgspec.json.encode(record)).decode())
    text, is_met = page(record, given.fail_above)
    print(text)
    if given.picture is not None:
        draw(record, given.picture, "random")
    write_text(given.folder / "local.md", text + "\n")
    raise SystemExit(0 if is_met else 3)


def compared(given: argparse.Namespace) -> Record:
    """A whole run."""
    began = time.monotonic()
    files, machine = Files(given), Machine(given)
    files.write()
    pastes = ask(machine, files)
    steps, rounds = predicted_passes(given, files, pastes), predicted_rounds(given, machine, files, pastes)
    write_text(given.folder / "predicted.json", json.dumps([list(map(list, steps)), list(map(list, rounds))]))
    print(f"predicted after {time.monotonic() - began:.0f} s", file=sys.stderr)
    steps = measured_passes(machine, files, steps)
    print(f"passes measured after {time.monotonic() - began:.0f} s", file=sys.stderr)
    rounds, parted = measured_rounds(machine, files, rounds)
    return Record(
        steps=steps, rounds=rounds, differ=parted.faults, ties=parted.ties, runs=machine.runs,
        waited=machine.waited, seconds=time.monotonic() - began, threads=given.threads, gpu=given.gpu,
        asked=bench_command(RUNTIME), has_clock=has_clock(given.engine, given.threads),
    )  # fmt: skip


if __name__ == "__main__":
    ends_in_a_line(main)
