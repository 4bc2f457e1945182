"""Arguments of `plesio.join` that few sessions need, apart from the common ones."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError
from plesio.core.files import make_writable
from plesio.core.within import AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies import Policy
from plesio.policies.grid import GridSetting
from plesio.policies.log_writer import LIMIT_BYTES
from plesio.protocol.figures import RunInfo
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.worker.environment import REPLICAS_VARIABLE, WorkerPlace
from plesio.runtime.worker.job_handle import Ambient, Chosen, JobHandle, ambient
from plesio.runtime.worker.pacing import Pacer


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The rare arguments of `plesio.join`.

    Args:
        num_servers: Servers of the store exchange; None is one per host, under ``adaptive`` at most four, and one for
            every 16 KiB of parameters at most.
        snapshot_every: Keep the shared parameters at every so many samples, for `Session.finish` to evaluate; None
            keeps none.
        pacer: Makes steps take as long as another machine's would; None lets them take as long as they do.
        info: Names for the results, and the seed of the sample order.
        job: A job to run in; None makes one for this session.
        replicas: 2 has a backup of the server, on a second host if there is one: it takes over when the server is lost,
            and no update that a worker has been told of is lost. None is 1, or the value of ``plesio run --replicas``.
        elastic: Workers of a collective go on without one that is lost; if not, its loss ends the run.
        log_bytes: What the policy's log (``events.jsonl``) may take on the disk; beyond it updates are left out of it.

    >>> JoinOptions(snapshot_every=10_000).num_servers is None
    True
    """

    num_servers: Annotated[int, AT_LEAST_1] | None = None
    snapshot_every: Annotated[int, AT_LEAST_1] | None = None
    pacer: Pacer | None = None
    info: RunInfo = field(default_factory=RunInfo)
    job: JobHandle | None = None
    replicas: Annotated[int, Within(1, 2)] | None = None
    elastic: bool = True
    log_bytes: Annotated[int, AT_LEAST_0] = LIMIT_BYTES

    def __post_init__(self) -> None:
        check_fields(self, "JoinOptions: ")
        if (self.num_servers or 1) > 1 and self.num_replicas > 1:
            raise ConfigError("with replicas=2 there is one server and its backup; leave num_servers out")

    @property
    def num_replicas(self) -> int:
        """How often the server is there.

        Raises:
            ConfigError: The environment has another number than 1 or 2.
        """
        if self.replicas is not None:
            return self.replicas
        told = os.environ.get(REPLICAS_VARIABLE, "1")
        if told not in ("1", "2"):
            raise ConfigError(f"{REPLICAS_VARIABLE}={told}: a server can be there once or twice; write 1 or 2")
        return int(told)


def surrounded(
    options: JoinOptions,
    trace: Path | str | None,
    *,
    policy: Policy | GridSetting | str | None,
    checkpoint: Path | str | None,
) -> tuple[JoinOptions, Path | None, Ambient | None]:
    """Return options and the folder of traces with what surrounds this worker, which is told of the script's own.

    The last value is all that surrounds it; None where a script runs by itself.

    Raises:
        ConfigError: Nothing can be written to the folder.
    """
    around = ambient() if options.job is None else None
    if around is not None:
        info, own = options.info, None if trace is None else str(trace)
        spec = policy if policy is None or isinstance(policy, str) else policy.spec
        saved = None if checkpoint is None else str(checkpoint)
        seed, torch_seed = info.seed, torch.initial_seed()
        around.on_chosen(Chosen(policy=spec, trace=own, checkpoint=saved, seed=seed, torch_seed=torch_seed))
        trace = trace if around.trace is None else around.trace
        name = around.name if around.name is not None and info.task == RunInfo().task else info.task
        options = replace(
            options,
            job=around.job,
            pacer=around.pacer if options.pacer is None else options.pacer,
            info=replace(info, task=name, seed=info.seed or around.seed),
        )
    make_writable(folder := None if trace is None else Path(trace), "traces")
    return options, folder, around


def checkpoints_of(
    around: Ambient | None, folder: Path | str | None, *, every: str | float, keep: int, resume: str
) -> CheckpointSetting | None:
    """Return the checkpoints of a call's arguments; the environment's alone where the script's own do not hold."""
    if around is not None and not around.own_checkpoints:
        folder, every, keep, resume = None, "10 min", 3, "auto"
    return CheckpointSetting.of(folder, every=every, keep=keep, resume=resume)


def place_of(options: JoinOptions) -> WorkerPlace | None:
    """Return this worker's place in its job; None where it trains alone."""
    return WorkerPlace.from_environment() if options.job is None else options.job.place
