"""Public measurements and their predictions, in words: the one nearest to a comparison or to a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from medusa_sim.report.screen import Fact
from medusa_sim.report.words.numbers import percent, significant
from medusa_sim.report.words.standing import standing_fact
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.served_figures import Figure
from medusa_sim.setups.setup import name_of

if TYPE_CHECKING:
    from medusa_sim.setups.comparison import Comparison
    from medusa_sim.setups.measured import NearestFigure


def measured_facts(scenario: Scenario) -> Iterator[Fact]:
    """Distance of a scenario from measured rows; the public figure nearest to it, as a detail where far."""
    yield from standing_fact(scenario)
    if scenario.scope != "model":
        return
    from medusa_sim.setups.measured import nearest_figure

    if (found := nearest_figure(scenario)) is not None:
        yield Fact("Measured", nearest_text(found), detail=len(found.differs) > 1)


def measured_text(answer: Comparison) -> str:
    """The public measurement nearest to the question, and the prediction for it."""
    from medusa_sim.setups.measured import nearest

    found = nearest(answer)
    if found is None:
        return (
            f"no public measurement of {answer.model.name} on these set-ups is held in profiles/served.toml"
        )
    figure, row = found.figure, found.row
    return (
        f"nearest in public: {figure_text(figure, name_of(row))}: {_speed_text(figure)}; predicted there"
        f"{f' with {figure.runtime}' if figure.runtime else ''}: "
        f"{significant(float(row['tokens_per_s_per_user']), 3)} ({percent(found.error, 0, signed=True)})"
        f"{'' if found.near else '; of other lengths or another version, so it is not drawn'}"
    )


def figure_text(figure: Figure, set_up: str = "") -> str:
    """`llama-3.3-70b on 4 x h200-sxm, ..., eagle3 with 3 drafts, 16 requests, 1024 + 256 tokens`.

    set_up: of the figure in other words, without its model.
    """
    named = name_of({**figure.set_up, "gpus": figure.set_up["tp"], "kv_precision": None})
    drafts = f"{figure.set_up['drafter']} with {figure.drafts} drafts" if figure.drafts else "no speculation"
    return (
        f"{set_up or f'{figure.model} on {named}'}, {drafts}, {figure.batch} requests, "
        f"{figure.prompt_tokens:g} + {figure.output_tokens:g} tokens"
    )


def _speed_text(figure: Figure) -> str:
    return f"{significant(figure.tokens_per_s_per_user, 3)} tokens/s a user ({figure.source})"


def nearest_text(found: NearestFigure) -> str:
    """The public measurement nearest to a scenario, the prediction for it, and their differences."""
    figure = found.figure
    runtime = f" with {figure.runtime}" if figure.runtime else ""
    predicted = f"predicted {percent(found.error, 0, signed=True)}{runtime}"
    line = f"{figure_text(figure)}: {_speed_text(figure)}, {predicted}"
    if not found.differs:
        return line
    *most, last = found.differs
    words = f"{', '.join(most)} and {last}" if most else last
    return f"{line}; not this set-up: another {words}"
