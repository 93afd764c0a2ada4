r"""One fit of what engines add to kernels over every served row: engines, GPUs and formats together.

    python benchmarks/hierarchy.py            # terms with their spread, errors, groups held out
    python benchmarks/hierarchy.py --write    # the terms into medusa_sim/engines/runtimes.toml

A step of a server is a sum of its parts; a term is a factor on one of them (what an engine's own kernels
take of those that were fitted) or a time beside them. A term of a set-up is the sum of what its levels say:
the format of weights in every engine, the engine, the engine on a generation of GPUs, ... Each is drawn to
nothing with the spread of its level, so that what one engine shows for a format counts in another as far as
they were seen to be alike. Where a term was fitted elsewhere (vLLM's dense models in 16 bits on Hopper)
nothing deviates: levels describe what differs from there. What is left out is predicted from all the rest,
whole GPUs, formats and models at a time. Mean times to the first token of the same rows say what prompts
cost (N17, N19): they are fitted along, with a wide error, where lengths are drawn.

Lengths: InferenceX draws them from 80 to 100 % of those named, nine tenths in the mean.

In `common/`, what is fitted stands in `hierarchy_terms.py`, to what in `hierarchy_cells.py`, how in
`hierarchy_fit.py`; what bands make of it in `hierarchy_bands.py`, where it goes in `hierarchy_written.py`.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from common.hierarchy_bands import ends_table, errors_by_kind, kinds_of, kinds_table, spreads_of, ways_table
from common.hierarchy_cells import deepseek_set_ups, parts_of
from common.hierarchy_fit import GROUP, Fit, Found, LeftOut, covariance, held_out
from common.hierarchy_written import write, write_nearness
from common.script import command_line
from common.study import table
from served_rows import served_cells, set_ups

from medusa_sim.arrays import FloatArray


def error_table(fit: Fit, found: Found, outs: dict[str, FloatArray], *, of_first: bool = False) -> str:
    """Mean errors by group: without the fit, with it, and held out. of_first: those of first tokens."""
    errors = fit.first_errors if of_first else fit.errors
    columns = {"before": errors(np.zeros(fit.spreads.size)), "fit": errors(found.x), **outs}
    cells = fit.cells.assign(**{name: 100.0 * np.abs(values) for name, values in columns.items()})
    if of_first:
        cells = cells[np.isfinite(cells.first_measured)]
    means = cells.groupby(GROUP)[list(columns)].mean()
    counts = cells.groupby(GROUP).size()
    lines = [
        (*key, counts[key], *(f"{value:.1f}" for value in row))
        for key, row in zip(means.index, means.to_numpy(), strict=True)
    ]
    lines.append(("all cells", "", "", "", len(cells), *(f"{cells[name].mean():.1f}" for name in columns)))
    lines += [
        (f"{title} over groups", "", "", "", len(means), *(f"{value:.1f}" for value in values))
        for title, values in (("mean", means.mean()), ("median", means.median()))
    ]
    return table(f"engine | GPU | weights | model | cells | {' | '.join(columns)}", 4, lines)


def terms_table(fit: Fit, found: Found) -> str:
    """Every level's value."""
    spread = np.sqrt(np.diag(covariance(found)))
    lines = []
    for (effect, keys, name), value, left, prior in zip(fit.names, found.x, spread, fit.spreads, strict=True):
        shown = f"{value:+.3g}" if effect.plus else f"x {np.exp(value):.3f}"
        lines.append((effect.term, " x ".join(keys), ", ".join(name), shown, f"{left:.2g}", f"{prior:g}"))
    return table("term | level | of | value | +- | spread", 3, lines)


def main() -> None:
    """Fit, hold out, print; write where asked."""
    parser = command_line(__doc__)
    parser.add_argument("--write", action="store_true", help="write the terms into runtimes.toml")
    parser.add_argument("--fit", action="store_true", help="without holding groups out")
    asked = parser.parse_args()
    fit = Fit(parts_of(chain(set_ups(served_cells()), deepseek_set_ups())))
    found = fit.solve(np.ones(len(fit.cells), dtype=bool))
    outs = {} if asked.fit else held_out(fit)
    print(error_table(fit, found, {title: out.errors for title, out in outs.items()}))
    print("First tokens:\n")
    print(error_table(fit, found, {title: out.firsts for title, out in outs.items()}, of_first=True))
    lines = errors_by_kind(fit, {"fit": LeftOut.of(fit, found.x), **outs})
    kinds = kinds_of(lines)
    print(kinds_table(lines, kinds))
    print(ways_table(lines, kinds))
    print(ends_table(lines, kinds))
    print(terms_table(fit, found))
    if asked.write:
        write(fit, found)
        write_nearness(fit, kinds, spreads_of(lines))


if __name__ == "__main__":
    main()
