"""Help pages of commands with many options: those that matter first, the others by what they are about."""

from __future__ import annotations

import click

from medusa_sim.load.arguments import LOAD
from medusa_sim.plan.arguments import ARGUMENTS
from medusa_sim.plan.question import QUESTION

FIRST = (
    "--gpu", "--model", "--drafter", "--acceptance", "--batch", "--rate", "--seq", "--policy", "--prompt",
    "--checkpoint", "--method", "--save",
)  # fmt: skip
"""What most questions begin with; the first six that a command has lead its page."""
MOST_FIRST = 6
_BESIDE: dict[str, tuple[str, ...]] = {
    "Engine and GPUs": ("--engine", "--cache", "--device", "--threads"),
    "Drafts and acceptance": ("--candidates", "--drafts"),
    "Number formats": (),
    "Requests": (),
    "The server": (),
    "What is asked for": (
        "--tokens-per-s-per-user", "--target-rate", "--measure", "--search", "--under-load",
    ),
    "Launch settings": ("--export", "--engine-version", "--draft-path", "--ab"),
    "Grids of any size": ("--out", "--shard", "--workers", "--scheduler"),
    "Output": (
        "--format", "--output", "--wide", "--all-rows", "--by-count", "--timeline", "--report", "--plot",
        "--overwrite", "--data-dir", "--help",
    ),
}  # fmt: skip
"""Sections in their order, with options that are no declared arguments."""
_DECLARED = {
    each.option.partition("/")[0]: each.section
    for known in (ARGUMENTS, QUESTION, LOAD)
    for each in known.values()
}
SECTIONS = {
    title: (
        *(name for name, section in _DECLARED.items() if section == title and name not in beside),
        *beside,
    )
    for title, beside in _BESIDE.items()
}
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
        known = {name for names in SECTIONS.values() for name in names}
        own = [name for name in listed if name not in (*first, *known)]
        for title, names in {"First": first, "Of this command": own, **SECTIONS}.items():
            here = [name for name in names if name in listed and (name not in first or title == "First")]
            if here:
                with formatter.section(title):
                    formatter.write_dl([listed[name] for name in here])
