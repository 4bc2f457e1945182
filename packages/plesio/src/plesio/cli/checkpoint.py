"""`plesio checkpoint`: what checkpoints a run has, whether they are whole, and their tensors as a plain torch file."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.given_once import Commands
from plesio.cli.options import Json, Overwrite
from plesio.cli.output_files import check_output_file, check_output_files, write_json
from plesio.cli.terminal import show as show_found
from plesio.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plesio.core.charts import Table
    from plesio.runtime.checkpoints.catalogue import CatalogueEntry

EXAMPLES = """\b
Examples:
  plesio checkpoint show runs/digits/checkpoints
  plesio checkpoint verify runs/digits/checkpoints
  plesio checkpoint export runs/digits/checkpoints --out model.pt
\b
`plesio run --checkpoint DIR` and plesio.join(..., checkpoint="DIR") make them."""

SHOWN_BYTES = 200_000_000
"""Reading this much takes long enough for a bar."""

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run's folder of checkpoints, or one of them.", show_default=False)
]

app = Commands(name="checkpoint", help="Show, verify or export the checkpoints of a run.", epilog=EXAMPLES)


@app.command(
    "show",
    epilog="\b\nExamples:\n  plesio checkpoint show runs/checkpoints\n"
    "  plesio checkpoint show runs/checkpoints/step-00001200 --json checkpoint.json",
)
def show(directory: Folder, json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List a run's checkpoints, or show one.

    One that was never finished, or whose files are missing or of another length, is named as such; `verify` reads
    every byte.
    """
    check_output_files({"--json": json_file}, overwrite=overwrite)

    from plesio.report.charts.terminal import plain_table
    from plesio.runtime.checkpoints.catalogue import catalogue

    entries = catalogue(directory)
    show_found(plain_table(_table(entries, now_unix_s=time.time())))
    for entry in entries:
        if entry.fault is not None:
            typer.echo(f"{entry.path.name} cannot be used: {entry.fault}")
    write_json(json_file, [entry.to_json() for entry in entries])


def _table(entries: "Sequence[CatalogueEntry]", *, now_unix_s: float) -> "Table":
    from plesio.core.charts import Table
    from plesio.core.units import format_bytes, format_seconds

    rows = []
    for entry in entries:
        told, size = entry.manifest, format_bytes(entry.num_bytes)
        if told is None:
            rows.append((entry.path.name, *["–"] * 6, size, "–"))
            continue
        rows.append(
            (
                entry.path.name,
                f"{told.clock:,}",
                f"{told.samples:,}",
                format_seconds(told.elapsed_s),
                told.policy,
                told.stage,
                str(told.num_workers),
                size,
                format_seconds(max(0.0, now_unix_s - told.created_unix_s)),
            )
        )
    headers = ("checkpoint", "step", "samples", "trained for", "policy", "in force", "workers", "size", "age")
    return Table(title="", headers=headers, rows=rows)


@app.command("verify", epilog="\b\nExamples:\n  plesio checkpoint verify runs/checkpoints")
def verify(directory: Folder) -> int:
    """Read every byte of a run's checkpoints, or of one.

    Each file is held against the checksum that the manifest has of it. The exit status is 0 if all checkpoints are
    whole, and 1 if one is damaged. One that was never finished is named and does no harm: no run goes on from it.
    """
    from rich.console import Console
    from rich.progress import Progress

    from plesio.runtime.checkpoints.catalogue import catalogue

    entries = catalogue(directory)
    num_bytes = sum(one.num_bytes for entry in entries if entry.manifest for one in entry.manifest.files.values())
    console = Console(stderr=True)
    quiet = num_bytes < SHOWN_BYTES or not console.is_terminal
    damaged = False
    with Progress(console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("reading", total=num_bytes)
        for entry in entries:
            wrong = entry.check(on_bytes=lambda read: progress.advance(task, read))
            damaged = damaged or bool(wrong and entry.finished)
            for fault in wrong:
                typer.echo(f"{entry.path.name}: {fault}")
            if not wrong:
                typer.echo(f"{entry.path.name}: whole")
    return 1 if damaged else 0


@app.command("export", epilog="\b\nExamples:\n  plesio checkpoint export runs/checkpoints --out model.pt")
def export(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="One checkpoint, or a run's folder: its newest that is whole.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the torch file goes.", show_default=False)],
    overwrite: Overwrite = False,
) -> None:
    """Write a checkpoint's tensors as a plain torch file.

    torch.load(FILE, weights_only=True) gives {"model": ..., "optimizer": ...}: what load_state_dict of an equal model
    and of an equal optimizer takes. For a grid it gives "model" alone, the mean over the groups.
    """
    check_output_file("--out", out, overwrite=overwrite)

    from plesio.runtime.checkpoints.catalogue import newest

    path, manifest = newest(directory)

    import torch

    from plesio.core.units import format_bytes
    from plesio.policies.grid import is_grid
    from plesio.runtime.checkpoints.reading import plain, read
    from plesio.runtime.grid.saving import whole_network

    values = {"model": whole_network(path, manifest)} if is_grid(manifest.policy) else plain(read(path))
    partial = out.with_name(out.name + ".part")
    try:
        torch.save(values, partial)
        partial.replace(out)
    except (OSError, RuntimeError) as error:  # torch's own, where it cannot write
        partial.unlink(missing_ok=True)
        raise DataError(f"cannot write {out}: {str(error).splitlines()[0]}") from None
    typer.echo(f"{path.name}, step {manifest.clock:,}, {manifest.policy}: {format_bytes(out.stat().st_size)} in {out}")
