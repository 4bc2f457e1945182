"""`plesio lab testbed`: the hosts of a cluster, made on this machine, for scripts that run there."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.given_once import Commands
from plesio.cli.options import Json, Overwrite
from plesio.cli.output_files import check_output_files, write_json
from plesio.cli.terminal import show
from plesio.core.errors import ConfigError
from plesio.core.files import check_script

if TYPE_CHECKING:
    from plesio.testbed.testbed import TestbedRecord

EXAMPLES = """\b
Examples:
  plesio lab testbed run --cluster 4x1gbe train.py
  plesio lab testbed up 2-racks --name racks
  plesio lab testbed run --on racks train.py
  plesio lab testbed status
  plesio lab testbed clean racks
\b
A recipe runs there with plesio compare --world testbed. Needs root, and Debian's iproute2."""

app = Commands(name="testbed", help="Make a cluster's hosts on this machine, to run scripts on.", epilog=EXAMPLES)

Cores = Annotated[
    float | None,
    typer.Option("--cores-per-host", metavar="N", help="Cores of this machine that a host may use, parts of one too."),
]
Jitter = Annotated[
    str, typer.Option("--jitter", metavar="TIME", help="Standard deviation of the latency of links that have one.")
]


def prepare_for_hosts() -> None:
    """Make sure that there can be hosts; torch, which must be loaded after this, will not warn of their addresses.

    Raises:
        ConfigError: There cannot; what is missing.
    """
    from plesio.testbed.testbed import QUIET, check_machine

    check_machine()
    os.environ.update(QUIET)


@app.command(
    "up", epilog="\b\nExamples:\n  plesio lab testbed up 4x1gbe\n  plesio lab testbed up mine.toml --name mine"
)
def up(
    cluster: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A cluster, or a file that describes one.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it; else as the cluster is called.")] = None,
    cores_per_host: Cores = None,
    jitter: Jitter = "0 s",
    json_file: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Make a testbed that stays until `clean`.

    Every host is a network namespace, every rack a bridge; links have the bandwidth and latency of the cluster.
    `plesio lab testbed run` keeps to a host's limits of cores and memory; a command by `ip netns exec` is outside them.
    """
    check_output_files({"--json": json_file}, overwrite=overwrite)

    from plesio.core.units import parse_seconds
    from plesio.cost.cluster import parse_cluster
    from plesio.testbed.held import Wish, hold

    found = parse_cluster(cluster)  # said before a process is started
    wish = Wish(
        name=name or found.name,
        cluster=str(Path(cluster).resolve()) if cluster.endswith(".toml") else cluster,
        cores_per_host=_checked(cores_per_host),
        jitter_s=parse_seconds(jitter),
    )
    record = hold(wish)
    print(f"{record.name}: {len(record.hosts)} hosts")
    for number, host in enumerate(record.hosts):
        print(f"  host {number}  rack {host.rack}  {host.address:<12}  ip netns exec {host.namespace} ...")
    write_json(json_file, _values(record))


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  plesio lab testbed run --cluster 4x1gbe train.py --epochs 3\n"
    "  plesio lab testbed run --on racks --workers 4 train.py",
)
def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file.", show_default=False)],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME|FILE", help="Whose hosts to make, until the script ends.")
    ] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="NAME", help="A testbed that is there (`up`).")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-n", metavar="N", help="Workers. [default: all there is room for]")
    ] = None,
    cores_per_host: Cores = None,
    jitter: Jitter = "0 s",
) -> int:
    """Run a training script with a worker on each host.

    As `plesio run` does it, with torchrun's variables; the job's key-value store is on host 0.
    """
    from plesio.core.units import parse_seconds
    from plesio.cost.cluster import parse_cluster
    from plesio.testbed.held import named
    from plesio.testbed.testbed import Testbed

    if (cluster is None) == (on is None):
        late = " (options come before the script)" if {"--cluster", "--on"} & {*(args or [])} else ""
        raise ConfigError(f"where to run? write --cluster NAME, or --on NAME of a testbed that is there{late}")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: write 1 or more")
    check_script(script)
    # before torch is imported, which warns of the hosts' addresses
    prepare_for_hosts()
    from plesio.runtime.launcher import launch

    if cluster is not None:
        with Testbed.of(
            parse_cluster(cluster),
            num_workers=workers,
            cores_per_host=_checked(cores_per_host),
            jitter_s=parse_seconds(jitter),
        ) as testbed:
            number = workers or testbed.record.num_slots
            return launch(script, args or [], num_workers=number, site=testbed.record)
    record = named(on or "")
    if workers is not None and workers > record.num_slots:
        raise ConfigError(f"--workers {workers}: testbed {record.name} has room for {record.num_slots}")
    return launch(script, args or [], num_workers=workers or record.num_slots, site=record)


@app.command(
    "status", epilog="\b\nExamples:\n  plesio lab testbed status\n  plesio lab testbed status --json testbeds.json"
)
def status(json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List the testbeds that are there, and what has gone through their hosts' interfaces."""
    check_output_files({"--json": json_file}, overwrite=overwrite)

    from plesio.testbed.held import held

    records = held()
    if not records:
        print("no testbeds")
    for record in records:
        _show(record)
    write_json(json_file, [_values(record) for record in records])


@app.command("clean", epilog="\b\nExamples:\n  plesio lab testbed clean\n  plesio lab testbed clean racks")
def clean(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One that is held; else only leftovers.", show_default=False)
    ] = None,
) -> None:
    """Remove a testbed, or what testbeds have left that nobody holds any more."""
    from plesio.testbed.held import let_go, named, remove_leftovers

    if name is not None:
        let_go(named(name))
        print(f"removed {name}")
    left = remove_leftovers()
    if left:
        print(f"removed leftovers: {', '.join(left)}")
    elif name is None:
        print("nothing is left over")


def _checked(cores_per_host: float | None) -> float | None:
    if cores_per_host is not None and not cores_per_host >= 0.05:
        raise ConfigError(f"--cores-per-host {cores_per_host:g}: write 0.05 or more")
    return cores_per_host


def _values(record: "TestbedRecord") -> dict[str, object]:
    traffic = [host.traffic() for host in record.hosts]
    return {
        "name": record.name,
        "cluster": record.cluster,
        "owner_pid": record.owner_pid,
        "created_unix_s": record.created_unix_s,
        "hosts": [
            {
                "namespace": host.namespace,
                "address": host.address,
                "rack": host.rack,
                "sent_bytes": sent.sent,
                "received_bytes": sent.received,
            }
            for host, sent in zip(record.hosts, traffic, strict=True)
        ],
    }


def _show(record: "TestbedRecord") -> None:
    from plesio.core.charts import Table
    from plesio.core.units import format_bytes, format_seconds
    from plesio.report.charts.terminal import plain_table

    since = format_seconds(time.time() - record.created_unix_s)
    rows = []
    for number, host in enumerate(record.hosts):
        traffic = host.traffic()
        sent, received = format_bytes(traffic.sent), format_bytes(traffic.received)
        rows.append((str(number), str(host.rack), host.address, sent, received, host.namespace))
    headers = ("host", "rack", "address", "sent", "received", "namespace")
    show(f"{record.name}: cluster {record.cluster}, held by process {record.owner_pid} for {since}")
    show(plain_table(Table(title="", headers=headers, rows=rows)))
