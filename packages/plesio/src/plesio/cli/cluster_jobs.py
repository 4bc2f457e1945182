"""The files by which Slurm, Kubernetes and TorchX start a job's workers, which then meet by torchrun's variables.

The job's secret is in none of these texts. Slurm's script makes it where it runs; Kubernetes keeps it in a Secret, and
TorchX's component makes it when it is submitted.

Slurm starts each worker as a task of its own, so the others outlive one that fails. Kubernetes and TorchX have a
torchrun on each node, which ends them all; they can start the whole job again.
"""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError
from plesio.core.within import AT_LEAST_0, AT_LEAST_1

_PORT = 29500
_MOST_NAME = 40
"""Characters of a name: Kubernetes takes 63, with what JobSet adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A script, and where its workers run; what it needs is counted by worker.

    Raises:
        ConfigError: A number is too small, or the name is none that all three systems take.
    """

    script: str
    args: tuple[str, ...]
    name: str
    nodes: Annotated[int, AT_LEAST_1]
    workers_per_node: Annotated[int, AT_LEAST_1]
    cpus: Annotated[int, AT_LEAST_1]
    gpus: Annotated[int, AT_LEAST_0]
    memory_gb: Annotated[int, AT_LEAST_1]
    variables: Mapping[str, str]
    """Variables of all workers, beside the secret and the place."""

    def __post_init__(self) -> None:
        check_fields(self, "launch: ")
        if len(self.name) > _MOST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name):
            raise ConfigError(
                f'--name "{self.name}": write a small letter, and then small letters, digits and hyphens, {_MOST_NAME} '
                "characters at most"
            )

    @property
    def num_workers(self) -> int:
        """Workers on all nodes."""
        return self.nodes * self.workers_per_node


def slurm_script(job: ClusterJob, *, time: str, partition: str | None) -> str:
    """Write a script for ``sbatch``; each task of its one step is a worker."""
    wishes = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": job.workers_per_node,
        "cpus-per-task": job.cpus,
        "mem": f"{job.memory_gb * job.workers_per_node}G",
        "time": time,
        "output": "%x-%j.out",
        **({"gpus-per-node": job.gpus * job.workers_per_node} if job.gpus else {}),
        **({"partition": partition} if partition else {}),
    }
    directives = "\n".join(f"#SBATCH --{wish}={value}" for wish, value in wishes.items())
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.variables.items())
    python, command = shlex.quote(sys.executable), shlex.join([sys.executable, job.script, *job.args])
    return f"""#!/bin/bash
{directives}
set -euo pipefail

# The job's secret is made here and reaches the workers in their environment: it is in no file, argument or listing.
: "${{PLESIO_SECRET:=$({python} -c 'import secrets; print(secrets.token_hex(32))')}}"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${{MASTER_ADDR%%$'\n'*}}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export PLESIO_SECRET MASTER_ADDR MASTER_PORT
{exports}
# A worker that fails does not end the others.
srun --export=ALL --distribution=block --cpus-per-task={job.cpus} --kill-on-bad-exit=0 --wait=0 bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE={job.num_workers}
    export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE={job.workers_per_node}
    exec "$@"' worker {command}
"""


def job_set(
    job: ClusterJob, *, image: str, namespace: str | None, restarts: int, volume: tuple[str, str] | None
) -> dict[str, Any]:
    """Make a JobSet of one Job a node, all started again together when one fails; see `secret_of` for its Secret.

    ``namespace`` None leaves it to ``kubectl``; ``volume`` is a claim of a volume, and where all pods see it.
    """
    own = {name: {"value": value} for name, value in job.variables.items()}
    secret = {"secretKeyRef": {"name": _secret_name(job), "key": "secret"}}
    index = {"fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/job-index']"}}
    sources: dict[str, Any] = {"PLESIO_SECRET": {"valueFrom": secret}, "NODE_RANK": {"valueFrom": index}, **own}
    torchrun = [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.workers_per_node}",
        "--node-rank=$(NODE_RANK)",
        f"--master-addr={job.name}-node-0-0.{job.name}",
        f"--master-port={_PORT}",
    ]
    requests = {"cpu": job.cpus * job.workers_per_node, "memory": f"{job.memory_gb * job.workers_per_node}Gi"}
    limits = {"nvidia.com/gpu": job.gpus * job.workers_per_node} if job.gpus else {}
    container = {
        "name": "workers",
        "image": image,
        "command": [*torchrun, *(word.replace("$(", "$$(") for word in (job.script, *job.args))],
        "env": [{"name": name, **source} for name, source in sources.items()],
        "resources": {"requests": requests, **({"limits": limits} if limits else {})},
        **({"volumeMounts": [{"name": "shared", "mountPath": volume[1]}]} if volume else {}),
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        **({"volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": volume[0]}}]} if volume else {}),
    }
    node = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job.name, namespace),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": restarts},
            "replicatedJobs": [
                {"name": "node", "replicas": job.nodes, "template": {"spec": {**node, "template": {"spec": pod}}}}
            ],
        },
    }


def secret_of(job: ClusterJob, *, namespace: str | None, secret: str) -> dict[str, Any]:
    """Make the Secret that `job_set` refers to."""
    metadata = _metadata(_secret_name(job), namespace)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"secret": secret}}


def _secret_name(job: ClusterJob) -> str:
    return f"{job.name}-secret"


def _metadata(name: str, namespace: str | None) -> dict[str, str]:
    return {"name": name} if namespace is None else {"name": name, "namespace": namespace}


def torchx_component(job: ClusterJob, *, image: str | None, restarts: int) -> str:
    """Write a Python file with a component ``train`` for ``torchx run``; it is TorchX's own ``dist.ddp``."""
    given = {
        "script": job.script,
        "name": job.name,
        **({"image": image} if image else {}),
        "cpu": job.cpus * job.workers_per_node,
        "gpu": job.gpus * job.workers_per_node,
        "memMB": 1024 * job.memory_gb * job.workers_per_node,
        "j": f"{job.nodes}x{job.workers_per_node}",
        "max_retries": restarts,
    }
    arguments = "".join(f"        {text!r},\n" for text in job.args)
    arguments += "".join(f"        {name}={value!r},\n" for name, value in given.items())
    variables = "".join(f", {json.dumps(name)}: {value!r}" for name, value in job.variables.items())
    return f'''import secrets

from torchx import specs
from torchx.components import dist


def train() -> specs.AppDef:
    """Train by {job.num_workers} workers, which have a secret of their own each time."""
    return dist.ddp(
{arguments}        env={{"PLESIO_SECRET": secrets.token_hex(32){variables}}},
    )
'''
