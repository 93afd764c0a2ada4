"""--out, --shard, --workers, --scheduler: rows as parts of a data set, by any number of processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.options import Threads
from medusa_sim.cli.output import Output
from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    from medusa_sim.parts.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsPlace:
    """Where parts go and who computes them; folder None: the command writes no parts."""

    folder: Path | None
    shard: str | None
    workers: int | None
    scheduler: str | None

    def check(self, output: Output) -> None:
        """Refuse what does not go together, before anything is computed. Raises UsageError."""
        given = {"--shard": self.shard, "--workers": self.workers, "--scheduler": self.scheduler}
        named = [option for option, value in given.items() if value is not None]
        if self.folder is None:
            if named:
                raise UsageError(f"{named[0]} writes parts of a data set: say where with --out DIR")
            return
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)}: each says who computes the parts; give one of them")
        if output.path is not None or output.form != "table":
            raise UsageError("--out writes Parquet parts into a folder; leave --format and -o out")


def parts_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command whose rows may be a data set; it gets `parts` (a PartsPlace)."""

    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Write parts of a Parquet data set into this folder instead: any number of rows, finished parts "
        "are skipped.",
    )
    @click.option(
        "--shard",
        default=None,
        help="With --out: i/n, the i-th of n shares of the parts, for any scheduler of jobs.",
    )
    @click.option(
        "--workers",
        type=Threads("processes"),
        default=None,
        help="With --out: this many processes of this machine (extra [cluster]).",
    )
    @click.option(
        "--scheduler", default=None, help="With --out: a dask scheduler, tcp://HOST:8786 (extra [cluster])."
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        out: Path | None,
        shard: str | None,
        workers: int | None,
        scheduler: str | None,
        **kwargs: Any,
    ) -> Any:
        place = PartsPlace(folder=out, shard=shard, workers=workers, scheduler=scheduler)
        return command(*args, parts=place, **kwargs)

    return wrapped


def write_parts(work: Work, place: PartsPlace, unit: str = "rows") -> None:
    """Compute the parts that are missing, with progress and time left; then say what was done.

    unit: what the work counts as computed.
    """
    from medusa_sim.cli.progress import progress
    from medusa_sim.parts.folder import PartFolder, Shard, run_here

    assert place.folder is not None  # noqa: S101  # callers ask for parts
    shard = Shard() if place.shard is None else Shard.read(place.shard)
    if place.workers is not None or place.scheduler is not None:
        from medusa_sim.parts.cluster import require_cluster_extra

        require_cluster_extra()
    folder = PartFolder.of(place.folder, work.description)
    with progress(unit) as advance:

        def told(computed: int, rows: int) -> None:
            advance(computed, rows, None)

        if place.workers is None and place.scheduler is None:
            done = run_here(work, folder, shard, told)
        else:
            from medusa_sim.parts.cluster import run_on_cluster

            done = run_on_cluster(work, folder, told, workers=place.workers, scheduler=place.scheduler)
    were = f", {done.there} were there" if done.there else ""
    click.echo(f"{done.parts} parts of {done.computed:,} {unit} computed into {place.folder}{were}", err=True)
