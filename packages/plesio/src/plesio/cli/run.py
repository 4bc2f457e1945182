"""`plesio run`: a training script in several local processes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.options import Every, JoinPolicy
from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.policies.grid import GridSetting
    from plesio.runtime.checkpoints.setting import CheckpointSetting

EXAMPLES = """\b
Examples:
  plesio run --workers 4 train.py --lr 0.1
  plesio run --workers 4 --policy ssp:4 train.py
  plesio run --join 127.0.0.1:41234 train.py --lr 0.1
  plesio run --workers 4 --checkpoint runs/ck --every "500 steps" train.py
  plesio run --workers 4 --checkpoint runs/ck --restarts 3 train.py
  plesio run --workers 4 --replicas 2 train.py
  plesio run --workers 4 --island 2 --policy ssp:4 train.py
  plesio run --grid 2x2 train.py
  plesio run --grid 1x4,schedule=1f1b,micro_batches=8 train.py
\b
Options of plesio come before the script; what follows it is the script's own.
Every line the workers print has its worker's rank in front."""

Script = Annotated[Path, typer.Argument(help="The Python file to run.", show_default=False)]
Arguments = Annotated[list[str] | None, typer.Argument(help="Its arguments.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-n",
        metavar="N",
        help="Processes to start. [default: 1; with --join, a group where the job was started with --grid]",
    ),
]
Grid = Annotated[
    str | None,
    typer.Option("--grid", metavar="SxK[,...]", help="Start a grid of S groups of K stages, a process each."),
]
Island = Annotated[
    str | None,
    typer.Option("--island", metavar="R[,...]", help="Ranks that are one worker together, of all or of each."),
]
Join = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="HOST:PORT",
        help="Add workers to a running job, which take over its state; it printed this address.",
    ),
]
Port = Annotated[int, typer.Option("--port", help="Port of the job's store; 0 is any free one.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Folder for checkpoints; go on from the latest one there."),
]
Keep = Annotated[int | None, typer.Option("--keep", metavar="N", help="How many are kept, the latest. [default: 3]")]
Resume = Annotated[
    str | None, typer.Option("--resume", metavar="auto|no|PATH", help="What to go on from. [default: auto]")
]
Replicas = Annotated[
    int | None, typer.Option("--replicas", metavar="1|2", help="2: a second server takes over from a lost one.")
]
Restarts = Annotated[
    int, typer.Option("--restarts", metavar="N", min=0, help="How often a failed run, or lost island, begins again.")
]


def run(
    script: Script,
    args: Arguments = None,
    workers: Workers = None,
    policy: JoinPolicy = None,
    grid: Grid = None,
    island: Island = None,
    join: Join = None,
    port: Port = 0,
    checkpoint: Checkpoint = None,
    every: Every = None,
    keep: Keep = None,
    resume: Resume = None,
    replicas: Replicas = None,
    restarts: Restarts = 0,
) -> int:
    """Run a training script in N local processes.

    They get torchrun's variables, so plesio.join() and torch.distributed find each other. When a worker fails the
    others go on (under fsdp, with mirror=N), and more can join at any time, under any policy but hier:bsp/ssp (--join,
    by the line that the job prints); a group of its K workers joins a grid. Ctrl-C stops them all. Checkpoints,
    replicas and the policy are for scripts whose plesio.join() says nothing of them. With --restarts, a run whose
    workers have all failed goes on from its last checkpoint; one that was refused does not; each island that is lost is
    started again while others go on. --grid is for scripts whose plesio.grid() does not say which grid it is.
    """
    from plesio.runtime.launcher import JoinDefaults, launch

    checkpoints = _checkpoints(checkpoint, every=every, keep=keep, resume=resume)
    if replicas not in (None, 1, 2):
        raise ConfigError(f"--replicas {replicas}: a server can be there once or twice; write 1 or 2")
    chosen = None if grid is None else _grid(grid, workers=workers, island=island, join=join)
    return launch(
        script,
        args or [],
        num_workers=workers if chosen is None else chosen.num_workers,
        join=join,
        port=port,
        defaults=JoinDefaults(checkpoints=checkpoints, replicas=replicas, policy=policy, grid=chosen, island=island),
        restarts=restarts,
    )


def _checkpoints(folder: Path | None, **told: str | int | None) -> "CheckpointSetting | None":
    from plesio.runtime.checkpoints.setting import CheckpointSetting

    given = {name: value for name, value in told.items() if value is not None}
    if given and folder is None:
        raise ConfigError(f"--{next(iter(given))} is about checkpoints; add --checkpoint DIR")
    return None if folder is None else CheckpointSetting(folder=folder, **given)  # type: ignore[arg-type]


def _grid(text: str, *, workers: int | None, island: str | None, join: str | None) -> "GridSetting":
    from plesio.policies.grid import GridSetting

    grid = GridSetting.parse(text)
    if join is not None:
        raise ConfigError(f"--grid {text}: the job that workers join has its grid already; leave --grid out")
    if island is not None:
        raise ConfigError(f"--island {island}: a grid has groups of its own; leave --grid or --island out")
    if workers not in (None, grid.num_workers):
        raise ConfigError(
            f"--workers {workers}: a {grid.groups}x{grid.stages} grid has {grid.num_workers}; leave --workers out"
        )
    return grid
