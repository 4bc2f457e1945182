"""The beginning and the end of a session inside a framework's loop, alike for all frameworks."""

import atexit
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from plesio.core.errors import ConfigError
from plesio.policies import Policy, parse_policy
from plesio.runtime.join import join
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.environment import WorkerPlace, launcher_policy
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.job_handle import ambient
from plesio.runtime.worker.loops import num_samples
from plesio.runtime.worker.own_hook import OwnHook
from plesio.runtime.worker.session import Session

ALL_DEVICES = "cpu:gloo,cuda:nccl"
"""Backends of a process group that workers on GPUs have in common."""


def checked_policy(policy: Policy | str | None, *, framework: str) -> Policy:
    """Return the policy, if a worker of ``framework`` can train under it; None is the launcher's, or adaptive.

    Raises:
        ConfigError: It cannot, or this worker joins a job that is running, or is a virtual one.
    """
    around = ambient()
    if around is not None and around.job is not None:
        raise ConfigError(
            f"{framework} has one state in a process, and virtual workers are in one: run the script on processes, by "
            "plesio run, or plesio compare --world process"
        )
    if policy is None:
        policy = launcher_policy() or "adaptive,store=off"
    chosen = parse_policy(policy) if isinstance(policy, str) else policy
    if chosen.shards:
        raise ConfigError(
            f"{framework} saves and evaluates whole models, and {chosen.spec} cuts them: use its own FSDP, or write "
            "bsp, local_sgd or ssp here"
        )
    if chosen.adapts and chosen.pushes:
        raise ConfigError(
            f"{chosen.spec} may go to the store in mid-run, where quicker workers get more samples, and {framework} "
            "gives all equally many: write adaptive,store=off, or switch between bsp and local_sgd"
        )
    place = WorkerPlace.from_environment()
    if place is not None and place.late:
        raise ConfigError(
            f"a worker that joins late has no place in the process group of {framework}; start the job with all workers"
        )
    return chosen


def begin(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    policy: Policy,
    trace: Path | str | None,
    scaler: torch.amp.GradScaler | None = None,
) -> Session:
    """Join with what the framework has prepared; the loss of a worker ends the run, as it ends the framework's.

    Raises:
        ConfigError: The framework's process group carries no tensors of the CPU.
    """
    if dist.is_initialized() and "cpu" not in str(dist.get_backend_config()):
        raise ConfigError(
            f"the process group carries tensors of GPUs alone, and workers exchange others too: have it made with the "
            f'backend "{ALL_DEVICES}"'
        )
    options = JoinOptions(elastic=False)
    session = join(model, list(optimizers), policy=policy, trace=trace, scaler=scaler, options=options)
    atexit.register(_leave_at_exit, weakref.ref(session))
    return session


def _leave_at_exit(session: "weakref.ref[Session]") -> None:
    """Close a session that a script has not, as scripts of the framework need not."""
    left, error = session(), getattr(sys, "last_value", None)
    if left is None or not left.is_open:
        return
    if isinstance(error, BaseException):
        left.__exit__(type(error), error, error.__traceback__)
    else:
        leave(left)


@torch.no_grad()
def leave(session: Session) -> None:
    """Close the session, and give the final parameters and buffers to every worker."""
    if not session.is_open:
        return
    session.close()
    if dist.is_initialized() and dist.get_world_size() > 1:
        for alike in by_dtype([*session.model.parameters(), *session.model.buffers()]):
            dist.broadcast(flat := flat_of(alike), src=0)
            write_parts(flat, alike)


def counted(session: Session, *, calls_of: nn.Module) -> torch.utils.hooks.RemovableHandle:
    """Count the samples of each training step by the calls of a model; remove the handle to stop."""
    optimizer = optimizers_of(session)[0]

    def count(module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            optimizer.given(num_samples((args, kwargs)))

    return calls_of.register_forward_pre_hook(OwnHook(count), with_kwargs=True)


def optimizers_of(session: Session) -> list[Any]:
    """Return the session's optimizers, one or several."""
    own = session.optimizer
    return own if isinstance(own, list) else [own]
