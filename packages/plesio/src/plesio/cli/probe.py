"""`plesio lab probe`: the network between the hosts, and the plan that fits it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.options import Json, Overwrite
from plesio.cli.output_files import check_output_files, write_json
from plesio.cli.terminal import show
from plesio.core.errors import ConfigError
from plesio.core.files import write_whole
from plesio.core.units import parse_bytes

if TYPE_CHECKING:
    from plesio.bench.probe import OnStep
    from plesio.cost.probe import Probe
    from plesio.runtime.worker.environment import WorkerPlace

EXAMPLES = """\b
Examples:
  plesio lab probe --workers 4
  torchrun --nnodes 8 --nproc-per-node 1 --node-rank R
      --master-addr HOST --master-port 29500
      -m plesio lab probe --out cluster.toml --page probe.html
  plesio simulate digits --cluster cluster.toml --workers 8
\b
On a cluster, start it on every host, once on each; rank 0 prints and writes.
It takes some 5 s for 4 hosts, 13 s for 8 in two racks; let nothing else run."""


def probe(
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-n", metavar="N", help="Start N processes on this machine and probe loopback."),
    ] = None,
    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Bytes of the tensor that the plan is for.")
    ] = "25 MB",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where a cluster file goes, for --cluster FILE.")
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Where an HTML page goes.")] = None,
    json_file: Json = None,
    overwrite: Overwrite = False,
) -> int:
    """Measure the links between hosts, find racks, plan the order.

    Latency and bandwidth of every pair, in rounds in which no two probes share a host; then what the ways between
    racks carry for all at once. The plan: the order of ranks, the way to exchange, who hosts how much of the store.
    """
    num_bytes = parse_bytes(size)
    check_output_files({"--out": out, "--page": page, "--json": json_file}, overwrite=overwrite)
    if out is not None and out.suffix != ".toml":
        raise ConfigError(f"--out {out}: a cluster file's name ends in .toml, or --cluster would not read it")

    from plesio.runtime.worker.environment import WorkerPlace

    place = WorkerPlace.from_environment()
    if place is not None and workers is not None:
        raise ConfigError(
            f"--workers {workers}: {place.num_workers} hosts take part already (WORLD_SIZE); leave it out"
        )
    if place is None and workers is None:
        raise ConfigError("nobody to probe: write --workers N, or start it on every host with torchrun (--help)")
    if workers is not None and workers < 2:
        raise ConfigError(f"--workers {workers}: write 2 or more; one alone has nobody to probe")
    measured = _measure(place, workers)
    # every rank has the result; the first one writes it
    if place is not None and place.rank > 0:
        return 0

    from plesio.cost.exchange_plan import plan
    from plesio.cost.topology_file import cluster_text
    from plesio.report.probe import render_probe, render_probe_page

    planned = plan(measured.topology, num_bytes=num_bytes)
    if out is not None:
        write_whole(out, cluster_text(planned, name=out.stem))
    if page is not None:
        write_whole(page, render_probe_page(measured, planned))
    show(render_probe(measured, planned))
    for path in (out, page):
        if path is not None:
            typer.echo(path)
    write_json(json_file, {**measured.to_json(), "plan": planned.to_json()})
    return 0


def _measure(place: "WorkerPlace | None", workers: int | None) -> "Probe":
    from plesio.bench.probe import probe_here, probe_locally

    if place is not None and place.rank > 0:
        return probe_here(place)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None)
        on_step: OnStep = lambda what, done, total: progress.update(  # noqa: E731 - a callback of three names
            bar, description=what, completed=done, total=total
        )
        if place is not None:
            return probe_here(place, on_step=on_step)
        assert workers is not None
        return probe_locally(workers, on_step=on_step)
