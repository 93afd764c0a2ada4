"""Every table and figure that is reproduced, by the name that the command line spells.

A further paper adds its targets here; nothing else needs to know of them.
"""

from __future__ import annotations

from functools import partial

from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.reproduce.decoding import table1, table3
from medusa_sim.reproduce.published import PAPER_GPU, Reproduction, Target, cited
from medusa_sim.reproduce.recursive import block_efficiencies, rsd_figure1
from medusa_sim.reproduce.simulation import figure21, figure22, figure23
from medusa_sim.reproduce.tables import POINTS, operator_figure, printed_table, table7
from medusa_sim.reproduce.token_rates import baseline_rates, figure7b, rsd_token_rates

_MEDUSA = "Medusa, arXiv 2401.10774"
_RSD = "Recursive Speculative Decoding, arXiv 2402.14160"
_IN_SAMPLE = "the kernel set `paper` is fitted to these rows: `medusa-sim specs` shows its held-out error"
_KEPT_OUT = "is kept out of this project as a test"
_CONVENTION = (
    "published curves divide by the decode step at batch 1 and 1024 keys: column speedup_fixed; at equal "
    "batch and length it is speedup_same, and the plotted 1.0 at one candidate is a convention"
)
_ONE_FITTED = "one number, host_us_per_launch, is fitted to the rates of Vicuna-7B and 13B of this table"
_OWN_CHAINS = (
    "each pair is predicted from its own SD rows of length 2 to 5; six constants of the model were chosen on "
    "these seven pairs (mean over pairs 2.6 % when chosen on the other six)"
)

_TABLES = {
    "table6": Target(
        title="Table 6: attention product, batch 16, Llama-33B, A100-80GB-PCIe",
        source=f"{_MEDUSA}, appendix G.2, Table 6",
        caveat=_IN_SAMPLE,
        rows=partial(printed_table, "medusa_table6", "seq_len"),
    ),
    "table7": Target(
        title="Table 7: attention product, 1024 keys, Llama-33B, A100-80GB-PCIe",
        source=f"{_MEDUSA}, appendix G.2, Table 7",
        caveat=f"prediction: the published table {_KEPT_OUT}; Table 6, to which the kernels are fitted, has "
        "one batch",
        rows=table7,
    ),
    "table8": Target(
        title="Table 8: up/gate/down projections, Llama-33B, A100-80GB-PCIe",
        source=f"{_MEDUSA}, appendix G.2, Table 8",
        caveat=_IN_SAMPLE,
        rows=partial(printed_table, "medusa_table8", "batch"),
    ),
}
"""Of one operator each."""
_CARDS = {PAPER_GPU: "NVIDIA A100 80GB PCIe", "a40": "NVIDIA A40", "rtx-a6000": "NVIDIA RTX A6000"}


def _operators(number: int, gpu: str, model: str) -> Target:
    """One of Figures 9 to 17."""
    kernels = "fitted to Tables 6 and 8"
    if gpu != PAPER_GPU:
        kernels = (
            "linear layers as fitted to measured rows of this GPU, attention products and launches as on the "
            "A100, because the paper prints no times here"
        )
    return Target(
        title=f"Figure {number}: operators of {model} on {_CARDS[gpu]}",
        source=f"{_MEDUSA}, appendix G.1, Figure {number}",
        caveat=f"prediction: the figure prints no numbers; {kernels}",
        rows=partial(operator_figure, gpu, model),
    )


def _points(number: int, name: str) -> Target:
    """One of Figures 18 to 20: the points of a table on the roofline."""
    table = _TABLES[name]
    return Target(
        title=f"Figure {number}: {table.title.partition(': ')[2]}, FLOP/s against operational intensity",
        source=f"{_MEDUSA}, appendix G.2, Figure {number} (the points of {table.source[-7:]})",
        caveat=table.caveat,
        rows=lambda data_dir: table.rows(data_dir)[POINTS],
    )


_SHAPES = [(gpu, f"llama-{size}") for gpu in _CARDS for size in ("7b", "13b", "33b")]
TARGETS: dict[str, Target] = {
    **_TABLES,
    **{f"figure{number}": _operators(number, *shape) for number, shape in enumerate(_SHAPES, 9)},
    **{f"figure{number}": _points(number, name) for number, name in enumerate(_TABLES, 18)},
    "figure21": Target(
        title="Figure 21: simulated acceleration rate, latency and speedup, Llama-7B block, batch 1",
        source="medusa_figures21_22",
        caveat="both baselines are the same step here; published values are read to about 0.05",
        rows=figure21,
    ),
    "figure22": Target(
        title="Figure 22: simulated speedup by batch, Llama-7B block, 1024 keys",
        source="medusa_figures21_22",
        caveat=_CONVENTION,
        rows=figure22,
    ),
    "figure23": Target(
        title="Figure 23: simulated speedup by context length, Llama-7B block, batch 4",
        source=f"{_MEDUSA}, appendix G.3, Figure 23",
        caveat=f"prediction: the published curves are kept out of this project as a test; {_CONVENTION}",
        rows=figure23,
    ),
    "table1": Target(
        title="Medusa Table 1: overhead of 64 candidates, five heads, batch 1",
        source="medusa_table1",
        caveat="hf-eager is fitted to the baseline rates alone; docs/accuracy.md says what is missing",
        rows=table1,
    ),
    "table3": Target(
        title="Medusa Table 3: impact of techniques on the speedup of Vicuna-7B",
        source=f"{_MEDUSA}, Table 3 (printed to about 0.1)",
        caveat="Medusa-1: teacher-forced accuracies, fitted correlation; Medusa-2: the rate of Table 1",
        rows=table3,
    ),
    "table1-rates": Target(
        title="Medusa Table 1: tokens/s of plain decoding, batch 1",
        source="medusa_table1",
        caveat=_ONE_FITTED,
        rows=partial(baseline_rates, "medusa_table1", "baseline_tokens_per_s_approx"),
    ),
    "table4": Target(
        title="Medusa Table 4: tokens/s of plain decoding, batch 1",
        source="medusa_table4",
        caveat=_ONE_FITTED,
        rows=partial(baseline_rates, "medusa_table4", "baseline_tokens_per_s"),
    ),
    "figure7b": Target(
        title="Medusa Figure 7b: Vicuna-13B with a draft model, tokens/s by draft length",
        source="medusa_figure7b",
        caveat="the acceptance rate of each draft is fitted to 3 of 15 lengths; the host is that of Table 1",
        rows=figure7b,
    ),
    "rsd-figure1": Target(
        title="RSD Figure 1: acceptance with Bernoulli draft and target, two draft tokens",
        source=f"{_RSD}, section 3 and Figure 1",
        caveat="exact calculators; the paper's figure is a plot without printed values",
        rows=rsd_figure1,
    ),
    "rsd-figure4": Target(
        title="RSD Figure 4: block efficiency and MBSU by draft length",
        source=f"{_RSD}, Figure 4 and the tables of appendix C",
        caveat=_OWN_CHAINS,
        rows=partial(block_efficiencies, 4),
    ),
    "rsd-figure5": Target(
        title="RSD Figure 5: block efficiency and MBSU by target budget",
        source=f"{_RSD}, Figure 5 and the tables of appendix C",
        caveat=_OWN_CHAINS,
        rows=partial(block_efficiencies, 5),
    ),
    "rsd-token-rates": Target(
        title="RSD token rates on an A100: SD, SpecTr, RSD-C, RSD-S",
        source="rsd_block_efficiency",
        caveat="two times a target, fitted to chains of depth 2 and 4 of one task; efficiencies as published",
        rows=rsd_token_rates,
    ),
}


def reproduction(name: str, data_dir: DataDir = None) -> Reproduction:
    """The table or figure of that name. Raises UsageError for an unknown one, naming the nearest."""
    if name not in TARGETS:
        raise UsageError(unknown_name("table or figure", name, TARGETS))
    target = TARGETS[name]
    source = target.source if " " in target.source else cited(target.source)
    return Reproduction(
        name=name, title=target.title, source=source, caveat=target.caveat, frame=target.rows(data_dir)
    )
