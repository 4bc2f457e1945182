"""`plesio launch`: a training script on a cluster's nodes, by the cluster's own system."""

import inspect
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from plesio.cli.cluster_jobs import ClusterJob, job_set, secret_of, slurm_script, torchx_component
from plesio.cli.given_once import Commands
from plesio.cli.options import Every, JoinPolicy
from plesio.core.errors import ConfigError
from plesio.core.files import check_script

EXAMPLES = """\b
Examples:
  plesio launch slurm --nodes 2 --workers-per-node 4 --policy ssp:4 train.py --lr 0.1
  plesio launch k8s --nodes 2 --image registry.example/train:1 train.py
  plesio launch torchx --nodes 2 --scheduler kubernetes --image registry.example/train:1 train.py
\b
--print shows what would be submitted. Options of plesio come before the script; what follows it is its own."""

Script = Annotated[
    str, typer.Argument(help="The Python file to run; in Kubernetes, that in the image.", show_default=False)
]
Arguments = Annotated[list[str] | None, typer.Argument(help="Its arguments.")]
Nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Hosts.")]
WorkersPerNode = Annotated[int, typer.Option("--workers-per-node", metavar="N", min=1, help="Workers on each of them.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the job. [default: the script's]")]
Cpus = Annotated[int, typer.Option("--cpus", metavar="N", min=1, help="Cores of a worker.")]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", min=0, help="GPUs of a worker.")]
Memory = Annotated[int, typer.Option("--memory", metavar="GB", min=1, help="Memory of a worker.")]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Folder for checkpoints, which all nodes see; go on from there."),
]
Restarts = Annotated[
    int, typer.Option("--restarts", metavar="N", min=0, help="How often a job that fails is started again.")
]
Print = Annotated[bool, typer.Option("--print", help="Show it on standard output, and submit nothing.")]

app = Commands(name="launch", help="Run a training script by Slurm, Kubernetes or TorchX.", epilog=EXAMPLES)


def _command(*examples: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a function a command of its name, with its own options and those of `_job`, which gives it the job."""

    def register(act: Callable[..., int]) -> Callable[..., int]:
        common = inspect.signature(_job).parameters
        _, *own = inspect.signature(act).parameters.values()

        def run(**given: Any) -> int:
            return act(_job(**{name: given.pop(name) for name in common}), **given)

        run.__doc__ = act.__doc__
        run.__signature__ = inspect.Signature([*common.values(), *own])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*common.values(), *own)}
        epilog = "\n  ".join(["\b\nExamples:", *examples])
        app.command(act.__name__, epilog=epilog, context_settings={"allow_interspersed_args": False})(run)
        return act

    return register


def _job(
    *,
    script: Script,
    args: Arguments = None,
    nodes: Nodes = 1,
    workers_per_node: WorkersPerNode = 1,
    policy: JoinPolicy = None,
    name: Name = None,
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    memory: Memory = 4,
    checkpoint: Checkpoint = None,
    every: Every = None,
) -> ClusterJob:
    """Make the job of the options that all commands have."""
    usual = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).lstrip("-0123456789")[:40].rstrip("-") or "train"
    return ClusterJob(
        script=script,
        args=tuple(args or ()),
        name=usual if name is None else name,
        nodes=nodes,
        workers_per_node=workers_per_node,
        cpus=cpus,
        gpus=gpus,
        memory_gb=memory,
        variables={"OMP_NUM_THREADS": str(cpus), **_variables(policy, checkpoint, every)},
    )


@_command(
    "plesio launch slurm --nodes 2 --workers-per-node 4 --time 12:00:00 train.py",
    "plesio launch slurm --nodes 2 --policy ssp:4 --print train.py --lr 0.1 > train.sbatch",
)
def slurm(
    job: ClusterJob,
    *,
    time: Annotated[str, typer.Option("--time", metavar="TIME", help="Limit, as sbatch takes it.")] = "01:00:00",
    partition: Annotated[str | None, typer.Option("--partition", help="[default: the cluster's]")] = None,
    print_only: Print = False,
) -> int:
    """Submit the script to Slurm, each worker a task.

    The file system is the nodes' common one, and the Python is the one that runs this command. A worker that fails does
    not end the others.
    """
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        raise ConfigError(f'--time "{time}": write it as sbatch takes it, such as 90 (minutes), 12:00:00 or 2-00:00:00')
    from plesio.runtime.checkpoints.setting import VARIABLE

    check_script(Path(job.script))
    folder = {name: str(Path(text).absolute()) for name, text in job.variables.items() if name == VARIABLE}
    job = replace(job, variables={**job.variables, **folder})
    text = slurm_script(job, time=time, partition=partition)
    return _shown(text) if print_only else _submitted(["sbatch"], text)


@_command(
    "plesio launch k8s --nodes 2 --workers-per-node 4 --image registry.example/train:1 train.py",
    "plesio launch k8s --nodes 2 --image registry.example/train:1 --volume runs:/runs --checkpoint /runs/digits"
    " --restarts 3 train.py",
)
def k8s(
    job: ClusterJob,
    *,
    image: Annotated[str, typer.Option("--image", help="Container image with Plesio and the script.")],
    restarts: Restarts = 0,
    volume: Annotated[
        str | None, typer.Option("--volume", metavar="CLAIM:PATH", help="A claim of a volume, and where pods see it.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="[default: kubectl's]")] = None,
    print_only: Print = False,
) -> int:
    """Submit the script to Kubernetes, as a JobSet.

    Each node is a pod, and the cluster needs JobSet's controller. The job's secret is in a Secret, which is submitted
    with it. --print shows the JobSet, in JSON, without that. When a pod fails JobSet ends all, and starts them again
    with --restarts; the run goes on from --checkpoint.
    """
    from plesio.runtime.checkpoints.setting import VARIABLE

    checkpoint = job.variables.get(VARIABLE, "/")
    if not checkpoint.startswith("/"):
        raise ConfigError(f'--checkpoint "{checkpoint}": write an absolute path, of a --volume that all pods see')
    claim = None if volume is None else re.fullmatch(r"([^:]+):(/.*)", volume)
    if volume is not None and claim is None:
        raise ConfigError(f'--volume "{volume}": write CLAIM:PATH, as in runs:/runs')
    mounted = None if claim is None else (claim[1], claim[2])
    manifest = job_set(job, image=image, namespace=namespace, restarts=restarts, volume=mounted)
    if print_only:
        return _shown(json.dumps(manifest, indent=2) + "\n")
    secret = secret_of(job, namespace=namespace, secret=secrets.token_hex(32))
    both: dict[str, Any] = {"apiVersion": "v1", "kind": "List", "items": [secret, manifest]}
    return _submitted(["kubectl", "apply", "-f", "-"], json.dumps(both))


@_command(
    "plesio launch torchx --workers-per-node 4 train.py",
    "plesio launch torchx --nodes 2 --scheduler slurm --print train.py > train_torchx.py",
)
def torchx(
    job: ClusterJob,
    *,
    restarts: Restarts = 0,
    scheduler: Annotated[str, typer.Option("--scheduler", help="One of TorchX's.")] = "local_cwd",
    image: Annotated[str | None, typer.Option("--image", help="Container image. [default: TorchX's]")] = None,
    print_only: Print = False,
) -> int:
    """Submit the script by TorchX's own dist.ddp.

    The component makes the job's secret when it is submitted. TorchX hands it over as a variable, so whoever may read
    the job's definition sees it.
    """
    check_script(Path(job.script))
    text = torchx_component(job, image=image, restarts=restarts)
    if print_only:
        return _shown(text)
    with tempfile.TemporaryDirectory(prefix="plesio-") as folder:
        component = Path(folder) / "component.py"
        component.write_text(text, encoding="utf-8")
        return _submitted(["torchx", "run", "-s", scheduler, f"{component}:train"])


def _variables(policy: str | None, checkpoint: str | None, every: str | None) -> dict[str, str]:
    """Return the variables by which workers know the policy and the checkpoints."""
    from plesio.policies import parse_policy
    from plesio.runtime.checkpoints.setting import VARIABLE, parse_every
    from plesio.runtime.worker.environment import POLICY_VARIABLE

    if every is not None and checkpoint is None:
        raise ConfigError("--every is about checkpoints; add --checkpoint DIR")
    if every is not None:
        parse_every(every)
    found = {
        POLICY_VARIABLE: None if policy is None else parse_policy(policy).spec,
        VARIABLE: checkpoint,
        f"{VARIABLE}_EVERY": every,
    }
    return {name: value for name, value in found.items() if value is not None}


def _shown(text: str) -> int:
    typer.echo(text, nl=False)
    return 0


def _submitted(command: Sequence[str], text: str | None = None) -> int:
    """Run the command with ``text`` on its standard input; returns its exit status."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"there is no {command[0]} here: go where it is, or add --print and submit what is printed")
    return subprocess.run(command, input=text, text=True, check=False, env=dict(os.environ)).returncode
