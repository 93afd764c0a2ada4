"""Rows of local engines that a person measured; `local_correction` corrects the law of their kernels by them.

Read are results of `llama-bench` (JSON, JSON lines, its Markdown table), `llama-batched-bench` (its table),
mlx-lm's `benchmark` and `generate`, and the timings of llama-server: whatever stands on a terminal may be
pasted. What they say of device, build, model and type fills what was not asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medusa_sim.engines.runtime import local_runtime_names
from medusa_sim.errors import DataError, UsageError, shown
from medusa_sim.file_types import FILES, named_file
from medusa_sim.gpus.gpu_names import device_names, gpu_name
from medusa_sim.gpus.local import runtime_of_backend
from medusa_sim.models.named import model_names
from medusa_sim.outside.limits import LINE_CHARACTERS, UPLOAD_BYTES
from medusa_sim.reading.documents import json_documents, lines_of
from medusa_sim.reading.files import named, read_text
from medusa_sim.units import NS_PER_S, US_PER_S

WANTED = (
    "what llama-bench (-o json or its table), llama-batched-bench, mlx-lm's benchmark or llama-server's "
    "timings print"
)
_COMMANDS = {
    "llama.cpp": "llama-bench -m MODEL.gguf -p 1,2,4,8,16 -n 64 -r 3 -o json",
    "mlx": "mlx_lm.benchmark --model MODEL -p 128 -g 128 -n 3",
}
"""Of each local engine the benchmark whose rows tell most: one column, and where the usual drafts verify."""
_MOST_COLUMNS = 64
"""Tokens of a forward pass that says something about verification; longer ones are prompts."""
_FASTEST_US, _SLOWEST_US = 50.0, 60e6
_MOST_SAMPLES = 1_000
_USUAL_DRAFTS = 3
"""llama.cpp's `--spec-draft-n-max` where nothing is given (common.h, spring 2026)."""
_BACKENDS = {
    "cuda": "cuda", "metal": "metal", "mtl": "metal", "vulkan": "vulkan", "rocm": "rocm", "hip": "rocm",
    "cpu": "cpu", "blas": "cpu",
}  # fmt: skip
_MARKS = ("avg_ts", "predicted_per_second", "t/s |", "S_TG t/s", "generation_tps", "tokens-per-sec")
"""What only these tools write."""
_DEVICE = re.compile(
    r"Device \d+: ([^,(|]{3,60})|(?:GPU name|found device):\s*([^,|]{3,60})|(Apple M\d[ A-Za-z]{0,8})"
)
_BUILD = re.compile(r"build:\s*(\w{4,12})(?: \((\d{3,6})\))?")
_TEST = re.compile(r"(pp|tg)(\d{1,6})(?:\s*@\s*d(\d{1,7}))?")
_RATE = re.compile(r"(?:generation_tps=|Generation:\s*\d+ tokens,\s*)([\d.]+)")
_DRAFTS = re.compile(
    r"(?:draft acceptance|accept)[^\n]{0,40}?\(?\s*(\d+) accepted\s*/\s*(\d+) generated", re.IGNORECASE
)
_MADE = re.compile(r"[^\n]{0,60}?(?<!prompt )eval time =[^/\n]{1,40}/\s*(\d{1,9}) (?:tokens|runs)")
"""A line of llama-server's log: `       eval time =  5000.00 ms /   400 tokens (...)`."""
_NEXT_REQUEST = "prompt eval time ="
"""The first of the timings of each request there."""
_BATCHED = ("PP", "TG", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """The time of a forward pass: `columns` tokens of one sequence, or of as many sequences (`is_batch`).

    passes: that its time is the mean of.
    """

    columns: int
    depth: float
    time_us: float
    is_batch: bool = False
    passes: float = 1.0


@dataclass(slots=True)
class LocalRows:
    """A paste, as far as it is read.

    told: arguments of a scenario that it names. drafted, accepted: counts of drafts. rounds: of the requests
    that drafted; 0 where nothing tells. draft_us: time of the `draft_tokens` of these.
    """

    rows: list[LocalRow] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    build: str = ""
    drafted: float = 0.0
    accepted: float = 0.0
    rounds: float = 0.0
    draft_tokens: float = 0.0
    draft_us: float = 0.0

    @property
    def drafted_us(self) -> float:
        """Mean time of a token of the requests that drafted; 0 where none did."""
        return self.draft_us / max(self.draft_tokens, 1.0)

    @property
    def accepted_share(self) -> float | None:
        """Accepted drafts over all drafts; None where none were counted.

        It is no rate by position: where the second draft of three fails, one of three is accepted.
        """
        return self.accepted / self.drafted if self.drafted else None

    @property
    def drafts(self) -> int | None:
        """Drafts in most rounds; None where nothing tells."""
        if not self.rounds:
            return None
        return max(round(self.drafted / self.rounds), math.ceil(self.accepted / self.rounds), 1)

    @property
    def tokens_per_round(self) -> float | None:
        """Mean tokens of a round, the target's own included; None where nothing tells."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None

    def acceptance(self, drafts: int | None = None) -> str | None:
        """As `--acceptance` takes it, `2.8@3` or `72%@3`; None where no drafts were counted.

        drafts: of a round, where the counts do not tell (None: llama.cpp's own number).
        """
        if self.accepted_share is None:
            return None
        if self.tokens_per_round is not None:
            return f"{self.tokens_per_round:.4g}@{self.drafts}"
        return f"{100.0 * self.accepted_share:.4g}%@{drafts or _USUAL_DRAFTS}"

    def add_test(self, entry: dict[str, Any]) -> None:
        """A test of llama-bench; anything else adds nothing."""
        rate, prompt, made = (_number(entry.get(key)) for key in ("avg_ts", "n_prompt", "n_gen"))
        samples = [_number(sample) for sample in _listed(entry.get("samples_ns"))]
        if samples and all(samples):  # median: robust to one slow sample
            rate = NS_PER_S * (prompt + made) / float(np.median(samples))
        if rate > 0.0 and (prompt > 0.0) != (made > 0.0):
            self.rows += _tested(prompt, made, _number(entry.get("n_depth")), rate)

    def add_request(self, times: dict[str, Any]) -> None:
        """The timings of a request to llama-server; anything else adds nothing."""
        rate, made = (_number(times.get(key)) for key in ("predicted_per_second", "predicted_n"))
        drafted, accepted = (_number(times.get(key)) for key in ("draft_n", "draft_n_accepted"))
        if rate <= 0.0:
            return
        self.drafted += drafted
        self.accepted += accepted
        if drafted:
            self.rounds += _rounds(made, accepted)
            self.draft_tokens += max(made, 1.0)
            self.draft_us += max(made, 1.0) * (US_PER_S / rate)
        else:
            prompt = _number(times.get("cache_n")) + _number(times.get("prompt_n"))
            self.rows.append(_plain(prompt + 0.5 * made, rate))


def is_written_by_tools(text: str) -> bool:
    """Whether a text holds what only these tools write."""
    return any(mark in text for mark in _MARKS)


def read_rows(path: Path) -> LocalRows:
    """The rows of a file, or of a paste. Raises DataError in one line where it holds none."""
    return rows_of(read_text(path, UPLOAD_BYTES, WANTED, DataError), path)


def rows_of(text: str, where: Path) -> LocalRows:
    """The rows of a text; `where` names it in messages."""
    if text.lstrip()[:1] in ("{", "["):
        found = _of_json(json_documents(text, where, WANTED, DataError, finite=False), where)
    else:
        found = _of_lines([line[:LINE_CHARACTERS] for line in lines_of(text)])
    if not found.rows and not found.drafted:
        raise DataError(f"{named(where)}: holds no speed of a forward pass; give {WANTED}")
    for row in found.rows:
        if not _FASTEST_US <= row.time_us <= _SLOWEST_US:
            raise DataError(f"{named(where)}: a pass of {row.time_us:.3g} us: not a time that a model takes")
    return found


def _of_json(documents: list[Any], where: Path) -> LocalRows:
    entries = [entry for each in documents for entry in (each if isinstance(each, list) else [each])]
    found = LocalRows()
    for entry in entries:
        if not isinstance(entry, dict):
            raise DataError(f"{named(where)}: holds {shown(entry)}; give {WANTED}")
        found.told |= _told(
            device=str(entry.get("gpu_info") or entry.get("cpu_info") or ""),
            backend=str(entry.get("backends") or ""),
            file=str(entry.get("model_filename") or ""),
            model=str(entry.get("model_type") or ""),
        )
        found.build = str(entry.get("build_number") or found.build)
        found.add_test(entry)
        times = entry.get("timings", entry)
        if isinstance(times, dict):
            found.add_request(times)
    return found


def _rounds(made: float, accepted: float) -> float:
    """Rounds of a request by its tokens: each adds one of the target's own, the prompt the first."""
    return max(made - 1.0 - accepted, 0.0)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _listed(value: object) -> list[object]:
    return value[:_MOST_SAMPLES] if isinstance(value, list) else []


def _plain(depth: float, rate: float, passes: float = 1.0) -> LocalRow:
    return LocalRow(columns=1, depth=max(depth, 1.0), time_us=US_PER_S / rate, passes=passes)


def _tested(prompt: float, made: float, depth: float, rate: float) -> Iterator[LocalRow]:
    """The row of a test of llama-bench: generation one by one, or a short prompt at once."""
    if made:
        yield _plain(depth + 0.5 * made, rate, made)
    elif prompt <= _MOST_COLUMNS:
        yield LocalRow(columns=int(prompt), depth=max(depth, 1.0), time_us=US_PER_S * prompt / rate)


def _of_lines(lines: list[str]) -> LocalRows:
    """Tables and lines of a terminal."""
    found = LocalRows()
    head: list[str] = []
    rates: list[float] = []
    for line in lines:
        if match := _DEVICE.search(line):
            found.told |= _told(device=next(name for name in match.groups() if name))
        if match := _BUILD.search(line):
            found.build = match[2] or match[1]
        if match := _RATE.search(line):
            rates.append(float(match[1]))
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.count("|") > 2 else []
        if "t/s" in cells or all(name in cells for name in _BATCHED):
            head = cells
        elif head and len(cells) == len(head) and not set(line) <= set("|-: "):
            row = dict(zip(head, cells, strict=True))
            found.told |= _told(backend=row.get("backend", ""), model=row.get("model", ""))
            found.rows += _row_of_batches(row) if "PP" in row else _row_of_test(row)
    if rates and not found.rows:
        found.rows.append(_plain(256.0, rates[-1]))  # the mean stands last
        found.told.setdefault("runtime", runtime_of_backend("mlx"))
    found.drafted, found.accepted, found.rounds = _drafts_of(lines)
    return found


def _drafts_of(lines: list[str]) -> tuple[float, float, float]:
    """Drafts, those accepted and rounds of a log; the two lines of a request come in either order."""
    drafted, accepted, rounds = 0.0, 0.0, 0.0
    made = 0.0  # tokens of the last request, until its drafts are told
    waiting: list[float] = []  # accepted drafts of requests whose tokens are not told yet
    for line in lines:
        if _NEXT_REQUEST in line:
            made = 0.0
        if (found := _DRAFTS.search(line)) and float(found[2]):
            accepted, drafted = accepted + float(found[1]), drafted + float(found[2])
            if made:
                rounds += _rounds(made, float(found[1]))
                made = 0.0
            else:
                waiting.append(float(found[1]))
        if found := _MADE.match(line):
            if waiting:
                rounds += _rounds(float(found[1]), waiting.pop())
            else:
                made = float(found[1])
    return drafted, accepted, 0.0 if waiting else rounds


def _cell(row: dict[str, str], name: str) -> float:
    found = re.match(r"[\d.]+", row.get(name, ""))
    return float(found[0]) if found and found[0].count(".") < 2 and found[0] != "." else 0.0


def _row_of_test(row: dict[str, str]) -> Iterator[LocalRow]:
    found, rate = _TEST.fullmatch(row.get("test", "")), _cell(row, "t/s")
    if found and rate > 0.0 and (count := float(found[2])) > 0.0:
        depth = float(found[3] or 0.0)
        yield from _tested(*((count, 0.0) if found[1] == "pp" else (0.0, count)), depth, rate)


def _row_of_batches(row: dict[str, str]) -> Iterator[LocalRow]:
    prompt, made, batch = (_cell(row, name) for name in _BATCHED)
    seconds = next((_cell(row, name) for name in row if name.startswith("T_TG")), 0.0)
    if made and batch and seconds and batch <= _MOST_COLUMNS:
        depth = max(prompt + 0.5 * made, 1.0)
        yield LocalRow(
            columns=int(batch), depth=depth, time_us=US_PER_S * seconds / made, is_batch=batch > 1.0
        )


def _told(*, device: str = "", backend: str = "", file: str = "", model: str = "") -> dict[str, str]:
    """The arguments that are named (gpu, runtime, model, weight_dtype), as far as they are known."""
    told: dict[str, str] = {}
    gpu = gpu_name(device.strip()) if device.strip() else ""
    if gpu in device_names():
        told["gpu"] = gpu
    words = re.findall(r"[a-z]+", backend.lower())
    if named := next((_BACKENDS[word] for word in words if word in _BACKENDS), None):
        told["runtime"] = runtime_of_backend(named)
    name = f"{Path(file).name} {model}".lower()
    if shape := _model_named(name):
        told["model"] = shape
    form = re.search(
        r"(i?q\d_(?:k(?:[ _-]+(?:small|medium|large|[sml])\b)?|0|1|xxs|xs|nl|s|m))|\b(b?f16)\b|mxfp4", name
    )
    if form and (known := named_file(form[0])) in FILES:
        told["weight_dtype"] = known
    return told


def _model_named(text: str) -> str:
    """The longest name of a model whose words all stand in a file's name; empty where there is none."""
    words = set(re.findall(r"[a-z0-9.]+", text))
    fits = [name for name in model_names() if set(name.split("-")) <= words]
    return max(fits, key=len, default="")


def bench_command(runtime: str) -> str:
    """The command whose rows correct a prediction for a local engine. Raises UsageError for another."""
    for engine, command in _COMMANDS.items():
        if runtime.startswith(engine):
            return command
    raise UsageError(
        f"runtime {shown(runtime)}: benchmarks correct {', '.join(local_runtime_names())} only; compare a "
        "running server by `medusa-sim check`"
    )
