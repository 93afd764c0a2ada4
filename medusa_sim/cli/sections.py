"""Help pages of commands with many options: those that matter first, the others by what they are about."""

from __future__ import annotations

import click

FIRST = (
    "--gpu", "--model", "--drafter", "--acceptance", "--batch", "--rate", "--seq", "--policy", "--prompt",
    "--checkpoint", "--measured", "--rows", "--method", "--save",
)  # fmt: skip
"""What most questions begin with; the first six that a command has lead its page."""
MOST_FIRST = 6
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Engine and GPUs",
        ("--runtime", "--engine", "--tp", "--ep", "--dp-attention", "--overlap", "--kernels", "--latency",
         "--fallback", "--cache", "--device", "--threads"),
    ),
    (
        "Drafts and acceptance",
        ("--candidates", "--candidates-max", "--drafts", "--max-drafts", "--chain-only", "--heads",
         "--draft-model", "--draft-runtime", "--draft-vocab", "--match-rate", "--workload", "--lossless"),
    ),
    ("Number formats", ("--dtype", "--weight-dtype", "--kv-dtype")),
    (
        "Requests",
        ("--prompt-tokens", "--output-tokens", "--length-cv", "--trace", "--users", "--think-s", "--requests",
         "--burstiness", "--ramp", "--seeds", "--prefix", "--prefix-hit-rate", "--drop-long"),
    ),
    (
        "The server",
        ("--max-num-seqs", "--max-num-batched-tokens", "--block-size"),
    ),
    (
        "What is asked for",
        ("--objective", "--max-latency-ms", "--tokens-per-s-per-user", "--ttft-ms", "--tpot-ms", "--e2e-ms",
         "--share", "--target-rate", "--measure",
         "--free-within", "--switch-gain", "--baseline", "--scope", "--search", "--price"),
    ),
    ("Launch settings", ("--export", "--engine-version", "--draft-path", "--ab")),
    ("Grids of any size", ("--out", "--shard", "--workers", "--scheduler")),
    (
        "Output",
        ("--format", "--output", "--wide", "--all-rows", "--by-count", "--timeline", "--report", "--plot",
         "--overwrite", "--data-dir"),
    ),
)  # fmt: skip
"""Sections and their options, in the order in which they are listed; a command lists those that it has."""
FEWEST = 15
"""Options from which a page has sections."""


class Sectioned(click.Command):
    """A command whose help page lists its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options: the six that matter, those of this command alone, then every section."""
        listed = {name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))
                  for name in [max(param.opts, key=len)]}  # fmt: skip
        if len(listed) < FEWEST:
            super().format_options(ctx, formatter)
            return
        first = [name for name in FIRST if name in listed][:MOST_FIRST]
        known = {name for _, names in SECTIONS for name in names}
        own = [name for name in listed if name not in (*first, *known, "--help")]
        rest = [(title, [name for name in names if name in listed]) for title, names in SECTIONS]
        rest[-1][1].append("--help")
        for title, names in (("First", first), ("Of this command", own), *rest):
            if shown := [listed[name] for name in names if name not in first or title == "First"]:
                with formatter.section(title):
                    formatter.write_dl(shown)
