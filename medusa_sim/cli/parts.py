"""Parts of a data set (--out, --shard), computed by any number of processes (--workers, --scheduler)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_sim.cli import say, warn
from medusa_sim.cli.output import Output
from medusa_sim.cli.progress import progress
from medusa_sim.errors import UsageError
from medusa_sim.scenario.declare import ANY, FOLDER, WORD, Declared, argument

if TYPE_CHECKING:
    from medusa_sim.parts.running import Compute, Shard
    from medusa_sim.parts.works import Work


@dataclass(frozen=True, kw_only=True)
class PartsPlace(Declared):
    """Where parts of a data set go and who computes them; `out` None: the command writes no parts."""

    out: Path | None = argument(
        None, FOLDER,
        "Write parts of a Parquet data set into this folder instead: any number of rows, finished parts are "
        "skipped.",
    )  # fmt: skip
    shard: str | None = argument(
        None, WORD, "With --out: i/n, the i-th of n shares of the parts, for any scheduler of jobs."
    )
    workers: int | None = argument(
        None, ANY, "With --out: this many processes of this machine.", names="processes"
    )
    scheduler: str | None = argument(
        None, WORD, "With --out: a dask scheduler, tcp://HOST:8786 (extra [cluster])."
    )

    def check(self, output: Output) -> None:
        """Refuse what does not go together, before anything is computed. Raises UsageError."""
        given = {"--shard": self.shard, "--workers": self.workers, "--scheduler": self.scheduler}
        named = [option for option, value in given.items() if value is not None]
        if self.out is None:
            if named:
                raise UsageError(f"{named[0]} writes parts of a data set: say where with --out DIR")
            return
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)}: each says who computes the parts; give one of them")
        if output.path is not None or output.form != "table":
            raise UsageError("--out writes Parquet parts into a folder; leave --format and -o out")
        self.share()

    def share(self) -> Shard:
        """The share of the parts that is asked for; all of them without --shard. Raises UsageError."""
        from medusa_sim.parts.running import Shard

        return Shard() if self.shard is None else Shard.read(self.shard)


def write_parts(work: Work, place: PartsPlace, unit: str = "rows") -> None:
    """Compute the parts that are missing, with progress and time left; then say what was done.

    unit: what the work counts as computed.
    """
    from medusa_sim.parts.folder import PartFolder
    from medusa_sim.parts.running import run_parts

    assert place.out is not None  # noqa: S101  # callers ask for parts
    shard, compute = place.share(), _who(place)
    folder = PartFolder.of(place.out, work.description)
    with progress(unit) as advance:
        try:
            done = run_parts(work, folder, compute, advance, shard)
        except KeyboardInterrupt:
            say(f"interrupted; finished parts are kept in {place.out}: the same command goes on")
            raise
    if not shard.numbers(work.parts):
        warn([f"--shard {place.shard} has no part: this work is cut into {work.parts}; give fewer shares"])
    were = f", {done.kept} were there" if done.kept else ""
    parts = f"{done.written} part{'s' * (done.written != 1)}"
    say(f"{parts} of {done.rows:,} {unit} computed into {place.out}{were}")


def _who(place: PartsPlace) -> Compute:
    """Who computes the parts. Raises UsageError for a scheduler without dask."""
    if place.scheduler is not None:
        from medusa_sim.parts.cluster import compute_on_cluster, require_cluster_extra

        require_cluster_extra()
        return partial(compute_on_cluster, place.scheduler)
    if place.workers is not None:
        from medusa_sim.parts.processes import compute_on_processes

        return partial(compute_on_processes, place.workers)
    from medusa_sim.parts.running import compute_here

    return compute_here
