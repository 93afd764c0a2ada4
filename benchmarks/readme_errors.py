"""README's table of errors: what the tables of docs/ say, a line for each kind of error.

    python benchmarks/readme_errors.py            # the table
    python benchmarks/readme_errors.py --write    # into README.md

Those tables are written by the commands that the lines name. Nothing is typed here but which rows a line is
about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from common.pages import DOCS, write_section
from common.script import command_line

README = "../README.md"
"""As seen from docs/."""
Row = dict[str, str]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def rows_of(page: str, *columns: str) -> list[Row]:
    """Rows of every Markdown table of docs/`page` that has these columns. Raises ValueError for none."""
    found: list[Row] = []
    for block in re.findall(r"(?m)(?:^\|.*\n)+", (DOCS / page).read_text(encoding="utf-8")):
        names, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines())
        if set(columns) <= set(names):
            found += [dict(zip(names, line, strict=True)) for line in lines]
    if not found:
        raise ValueError(f"docs/{page} has no table with the columns {', '.join(columns)}")
    return found


def first(text: str) -> str:
    """The first number of a cell: its mean, where bias and worst stand behind it."""
    number = _NUMBER.search(text)
    if number is None:
        raise ValueError(f"no number in {text!r}")
    return number[0]


def span(cells: Sequence[str]) -> str:
    """`4.9-7.4 %`."""
    values = sorted({first(cell) for cell in cells}, key=float)
    return f"{values[0]} %" if len(values) == 1 else f"{values[0]}-{values[-1]} %"


def _operators(*operators: str) -> list[Row]:
    return [row for row in rows_of("validation.md", "operator", "held out") if row["operator"] in operators]


def _of(rows: Sequence[Row], is_one: Callable[[Row], bool], *columns: str) -> list[str]:
    """Cells of the rows that are meant; the page must have some."""
    found = [row[column] for row in rows if is_one(row) for column in columns]
    if not found:
        raise ValueError(f"no row is meant among {len(rows)}")
    return found


def lines() -> list[tuple[str, ...]]:
    """What, roofline, held out, the script that prints it, where its rows are."""
    linear, attention = _operators("linear"), _operators("decode_attention", "prefill_attention")
    formats, gpus = (sorted({row[name] for row in linear}) for name in ("dtype", "GPU"))
    sources = rows_of("validation-engines.md", "source", "left out %")
    served = rows_of("accuracy.md", "new", "error to expect")
    given = rows_of("accuracy.md", "engine", "family", "model", "mean error", "rows are in")
    load = rows_of("validation-engines.md", "models", "TPOT", "E2E", "TTFT")
    regret = rows_of("validation.md", "models", "roofline: mean")
    plain = "`operator_rows.py`"
    return [
        (f"linear layers, {', '.join(formats)}, {len(gpus)} GPUs",
         span([row["roofline"] for row in linear]), span([row["held out"] for row in linear]),
         plain, "wheel aiconfigurator-core; repositories"),
        ("attention, decoding and prefill", span([row["roofline"] for row in attention]),
         span([row["held out"] for row in attention]), plain, "wheel aiconfigurator-core; repositories"),
        ("time per token of full servers, vLLM, SGLang and TensorRT-LLM, H100, H200 and B200", "",
         span(_of(served, lambda row: row["new"] != "measured" and row["cells"] != "0", "error to expect")),
         "`hierarchy.py`", "repositories ai-dynamo/aiconfigurator, SemiAnalysisAI/InferenceX"),
        ("the same of a server that was given to the project, Qwen3-8B in vLLM 0.30, H100", "",
         span(_of(given, _is_in_clone, "mean error")), "`accuracy.py --only own_servers`", "this clone"),
        ("plain steps in vLLM 0.11, 8B to 27B, 8 to 256 requests", "",
         span(_of(sources, lambda row: row["source"] == "ML.ENERGY", "left out %")),
         "`engine_fit.py`", "repository ml-energy/leaderboard"),
        ("speedups in vLLM 0.10 and SGLang 0.5 (EAGLE-3, n-grams)", "",
         span(_of(sources, _is_speedup, "left out %")), "`engine_fit.py`",
         "arXiv 2601.11580; repository SpecForge"),
        ("latencies of vLLM 0.15 under Poisson load", "",
         span(_of(load, lambda row: row["models"] == "every model, held out", "TPOT", "E2E", "TTFT")),
         "`serving_validation.py`", "repository inference-sim"),
        ("speedup lost by choosing with the prediction, mean (worst)", _with_worst(regret, "roofline: "),
         _with_worst(regret, ""), plain, "repositories"),
    ]  # fmt: skip


def _is_speedup(row: Row) -> bool:
    return row["source"].startswith(("specdecode-bench ngram", "specdecode-bench eagle3", "SpecBundle"))


def _is_in_clone(row: Row) -> bool:
    return (row["rows are in"], row["engine"], row["fitted"]) == ("clone", "vllm", "no")


def _with_worst(rows: Sequence[Row], prefix: str) -> str:
    """Means of the files, and the worst model of all."""
    worst = max((first(row[f"{prefix}worst"]) for row in rows), key=float)
    return f"{span([row[f'{prefix}mean'] for row in rows])} ({worst} %)"


def errors_section() -> str:
    """The table, and what single rows do."""
    linear = _operators("linear")
    worst = max((row["worst row"] for row in linear), key=lambda cell: float(first(cell)))
    head = ("", "roofline", "held out", "command: `python benchmarks/...`", "the measured rows are in")
    found = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *lines())]
    rows = f"Single rows are worse: up to {worst} for these linear layers, more in other formats."
    return "\n".join([*found, "", rows, ""])


def main() -> None:
    """Print the table; write it where asked."""
    given = command_line(__doc__, writes="the table into README.md").parse_args()
    text = errors_section()
    print(text)
    if given.write:
        write_section(README, "errors", text)


if __name__ == "__main__":
    main()
