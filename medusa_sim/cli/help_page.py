"""Help pages: options in sections, each on a line with its default."""

from __future__ import annotations

import functools

import click

from medusa_sim.scenario.arguments import ARGUMENTS

FIRST = (
    "--gpu", "--model", "--drafter", "--acceptance", "--batch", "--rate", "--seq", "--policy", "--prompt",
    "--checkpoint", "--method", "--save",
)  # fmt: skip
"""Options that most questions begin with; the first six that a command has lead its page."""
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
        "--format", "--output", "--verbose", "--wide", "--all-rows", "--by-count", "--timeline", "--report",
        "--plot", "--overwrite", "--data-dir", "--help",
    ),
}  # fmt: skip
"""Sections in their order, with options that are no declared arguments."""
FEWEST = 15
"""Options from which a page has sections."""
_KINDS = {
    " INTEGER RANGE": " N", " INTEGER": " N", " FLOAT RANGE": " X", " FLOAT": " X", " DIRECTORY": " DIR",
    " PATH": " FILE",
}  # fmt: skip
_LONGEST_CHOICE = 24
"""Most characters of a list of names after an option; a longer list goes into its help."""


@functools.cache
def sections() -> dict[str, tuple[str, ...]]:
    """Sections and their options, in the order in which a help page lists them."""
    from medusa_sim.load.arguments import LOAD  # only a help page needs every declared argument
    from medusa_sim.scenario.question import QUESTION

    declared = {
        each.option.partition("/")[0]: each.section
        for known in (ARGUMENTS, QUESTION, LOAD)
        for each in known.values()
    }
    return {
        title: (
            *(name for name, section in declared.items() if section == title and name not in beside),
            *beside,
        )
        for title, beside in _BESIDE.items()
    }


def help_line(param: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """An option with the kind of its value in a word, and what it does with its default in brackets.

    Ranges are left out: what is out of range is told when it is given.
    """
    told = param.get_help_record(ctx)
    if told is None or not isinstance(param, click.Option):
        return told
    names, text = told
    for kind, short in _KINDS.items():
        names = names.removesuffix(kind) + short if names.endswith(kind) else names
    option, bracket, choices = names.partition(" [")
    if bracket and len(choices) > _LONGEST_CHOICE:
        *first, last = choices.removesuffix("]").split("|")
        names = f"{option} NAME"
        if not all(f"{name}:" in text for name in (*first, last)):
            text = f"{', '.join(first)} or {last}: {text[:1].lower()}{text[1:]}"
    body, bracket, extra = text.rpartition("  [")
    if not bracket:
        return names, text
    parts = extra.removesuffix("]").split("; ")
    kept = [part.removeprefix("default: ") for part in parts if part.startswith("default: ")]
    return names, body + "".join(f" [{part}]" for part in kept) + " (required)" * ("required" in parts)


class Sectioned(click.Command):
    """A command whose help page lists its options in sections, with a line for most of them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options: the six that matter, the ones of this command alone, then every section."""
        listed = {name: record for param in self.get_params(ctx) if (record := help_line(param, ctx))
                  for name in [max(param.opts, key=len)]}  # fmt: skip
        if len(listed) < FEWEST:
            with formatter.section("Options"):
                formatter.write_dl(list(listed.values()))
            return
        first = [name for name in FIRST if name in listed][:MOST_FIRST]
        known = {name for names in sections().values() for name in names}
        rest = [name for name in listed if name not in (*first, *known)]
        for title, names in {"First": first, "Of this command": rest, **sections()}.items():
            if here := [name for name in names if name in listed and (name not in first or title == "First")]:
                with formatter.section(title):
                    formatter.write_dl([listed[name] for name in here])
