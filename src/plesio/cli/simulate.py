"""`plesio simulate`: training code on workers that are not there, in virtual time."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.bench.progress import ProgressSink
    from plesio.core.results import RunResult
    from plesio.runtime.virtual import Progress

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = """\b
Examples:
  plesio simulate digits --workers 16 --cluster 16x1gbe --policy ssp:4 --step-time "20 ms"
  plesio simulate digits --workers 4 --policy asp --step-time "20 ms" --slow 3:0.33
  plesio simulate train.py --workers 8 --policy local_sgd:8 --step-time "50 ms" -- --lr 0.1
\b
Gradients are real; how long computing and sending take is modelled. A script is run
as each of the workers, and its plesio.join finds the others; what follows -- is its own."""


def simulate(
    what: Annotated[
        str, typer.Argument(metavar="TASK|SCRIPT", help="A task's name, or a .py file.", show_default=False)
    ],
    args: Annotated[list[str] | None, typer.Argument(help="A script's arguments.")] = None,
    workers: Annotated[int, typer.Option("--workers", "-n", metavar="N", help="Virtual workers.")] = 4,
    policy: Annotated[str, typer.Option("--policy", metavar="POLICY", help="See `plesio policies`.")] = "bsp",
    step_time: Annotated[
        str, typer.Option("--step-time", metavar="TIME", help="What a step takes a worker of speed 1.")
    ] = "20 ms",
    slow: Annotated[
        list[str] | None,
        typer.Option("--slow", metavar="RANK:SPEED", help="A worker of another speed; may be repeated."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME|FILE", help="Hosts and links; else one host with enough cores."),
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="Passes over a task's data, all workers together.")
    ] = 4,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of parameters, order and random streams.")] = 0,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for results.json, traces and report.html.")
    ] = Path("runs/simulation"),
) -> int:
    """Train on virtual workers, in virtual time, in this process.

    Shows accuracy, throughput, waiting, bytes and staleness on a cluster that you do not have. Equal arguments give
    equal results, to the bit.
    """
    from plesio.bench.compare import run_comparison
    from plesio.bench.recipe import make_recipe
    from plesio.cli.compare import prepare_folder, print_results
    from plesio.cli.progress_display import progress_display
    from plesio.core.units import parse_seconds
    from plesio.cost.cluster import Cluster, parse_cluster
    from plesio.policies import parse_policy

    spec = parse_policy(policy).spec
    if workers < 2:
        raise ConfigError(f"--workers {workers}: write 2 or more; one alone has nobody to be consistent with")
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs}: write 1 or more")
    speeds = dict(_speed(text, num_workers=workers) for text in slow or ())
    step_s = parse_seconds(step_time)
    hosts = Cluster.one_host(workers) if cluster is None else parse_cluster(cluster).for_workers(workers)
    hosts.check_workers(workers)
    is_script = what.endswith(".py") and ":" not in what
    if args and not is_script:
        raise ConfigError(f"{' '.join(args)}: only a script has arguments of its own; {what} is a task")
    with progress_display() as progress:
        if is_script:
            if not Path(what).is_file():
                raise ConfigError(f"there is no script {what}")
            prepare_folder(out, resume=False, overwrite=True)
            runs = _run_script(
                Path(what),
                args or [],
                num_workers=workers,
                cluster=hosts,
                policy=spec,
                step_s=step_s,
                speeds=speeds,
                seed=seed,
                out=out,
                progress=progress,
            )
        else:
            recipe = make_recipe(
                {
                    "task": {"name": what},
                    "run": {"policies": [spec], "seeds": [seed], "epochs": epochs},
                    "workers": {
                        "count": workers,
                        "step_time": {"kind": "constant", "mean": step_time},
                        "unequal": [{"rank": rank, "speed": speed} for rank, speed in speeds.items()],
                    },
                },
                folder=Path.cwd(),
                where="plesio simulate",
            )
            prepare_folder(out, resume=False, overwrite=True)
            runs = run_comparison(recipe, out=out, resume=False, progress=progress, world="virtual", cluster=hosts)
    print_results(out)
    return 1 if any(run.status != "finished" for run in runs) else 0


def _run_script(
    script: Path, arguments: list[str], *, out: Path, progress: "ProgressSink", **settings: Any
) -> "list[RunResult]":
    from plesio.bench.progress import RunLabel, Snapshot
    from plesio.bench.simulate import simulate_script
    from plesio.core.results import write_results

    progress.run_started(
        RunLabel(policy=settings["policy"], seed=settings["seed"], number=1, num_runs=1), num_samples=None
    )

    def advance(state: "Progress") -> None:
        progress.run_advanced(
            Snapshot(
                samples=state.samples,
                step=state.steps,
                samples_per_s=state.samples / state.virtual_s if state.virtual_s else 0.0,
                loss=None if math.isnan(state.loss) else state.loss,
                mean_staleness=state.mean_staleness,
            )
        )

    runs = simulate_script(script, arguments, trace=out / "runs" / "simulation", on_progress=advance, **settings)
    for run in runs:
        progress.run_finished(run)
    write_results(out / "results.json", runs)
    return runs


def _speed(text: str, *, num_workers: int) -> tuple[int, float]:
    match = re.fullmatch(r"(\d+):(\d*\.?\d+)", text)
    if match is None or float(match[2]) == 0:
        raise ConfigError(f'--slow "{text}": write a rank and its speed, as in 3:0.33')
    rank = int(match[1])
    if rank >= num_workers:
        raise ConfigError(f'--slow "{text}": there is no rank {rank} among {num_workers} workers (0 is the first)')
    return rank, float(match[2])
