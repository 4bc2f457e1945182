"""The result of `Session.state_dict`: the model's and the optimizer's state in the form of torch's own objects."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from torch.optim import Optimizer

from plesio.core.arguments import checked
from plesio.core.errors import ConfigError, DataError
from plesio.runtime.worker.exchange.replica import Replica

SCHEMA_VERSION = 1
_UNSUITABLE = (KeyError, RuntimeError, ValueError, TypeError)
"""Raised by torch's objects, given a state that is not theirs."""


def state_of_run(replica: Replica, *, policy: str, clock: int, num_workers: int) -> dict[str, Any]:
    """Copy the state that all workers share, wherever it is kept, with a description of its run."""
    with replica.whole():
        optimizers = [deepcopy(optimizer.state_dict()) for optimizer in replica.stepper.optimizers]
        model = deepcopy(replica.model.state_dict())
    groups = [group for optimizer in optimizers for group in optimizer["param_groups"]]
    for group, options in zip(groups, replica.stepper.options(), strict=True):
        group.update(options)
    run = {
        "schema": SCHEMA_VERSION,
        "policy": policy,
        "clock": clock,
        "num_workers": num_workers,
        "optimizer": _classes(replica),
    }
    scaler = {} if replica.scaling is None else {"scaler": replica.scaling.scaler.state_dict()}
    optimizer: Any = optimizers if len(optimizers) > 1 else optimizers[0]
    return {"model": model, "optimizer": optimizer, **scaler, "plesio": run}


@checked
def load_state(replica: Replica, state: Mapping[str, Any], *, steps: int, resumed: bool) -> None:
    """Begin from what `state_of_run` gave.

    Raises:
        ConfigError: The session has begun already.
        DataError: The state is none, or of another model or optimizer.
    """
    _check_beginning(steps, resumed=resumed)
    run = state.get("plesio")
    if not isinstance(run, Mapping) or run.get("schema") != SCHEMA_VERSION:
        raise DataError("this is no state that session.state_dict() of this version of Plesio gave")
    ours, theirs = _classes(replica), run.get("optimizer")
    if theirs not in (None, ours):
        raise DataError(
            f"the state is of a run with {theirs}, and this session trains with {ours}: make it {theirs} again, or "
            'load state["model"] into the model alone'
        )
    try:
        with replica.settable():
            replica.model.load_state_dict(state["model"])
            saved = state["optimizer"] if len(replica.stepper.optimizers) > 1 else [state["optimizer"]]
            for optimizer, one in zip(replica.stepper.optimizers, saved, strict=True):
                optimizer.load_state_dict(deepcopy(one))
        if replica.scaling is not None and "scaler" in state:
            replica.scaling.scaler.load_state_dict(state["scaler"])
    except _UNSUITABLE as error:
        raise DataError(f"the state is of another model or optimizer: {' '.join(str(error).split())}") from error
    _loaded(replica)


@checked
def load_optimizer(
    replica: Replica, optimizer: Optimizer, state: Mapping[str, Any], *, steps: int, resumed: bool
) -> None:
    """Begin from the state of one optimizer, and from the parameters that the model has now.

    Raises:
        ConfigError: The session has begun already.
        DataError: The state is of another optimizer.
    """
    _check_beginning(steps, resumed=resumed)
    try:
        with replica.settable():
            optimizer.load_state_dict(deepcopy(dict(state)))
    except _UNSUITABLE as error:
        raise DataError(f"the state is of another optimizer: {' '.join(str(error).split())}") from error
    _loaded(replica)


def _check_beginning(steps: int, *, resumed: bool) -> None:
    if resumed:
        raise ConfigError("load_state_dict in a run that was resumed from a checkpoint: it has the state of that")
    if steps:
        raise ConfigError(f"load_state_dict after step {steps}: call it before the first step of the session")


def _loaded(replica: Replica) -> None:
    replica.stepper.sparse_momentum()
    replica.replaced()
    replica.changes.adopt()


def _classes(replica: Replica) -> str:
    return ", ".join(type(optimizer).__qualname__ for optimizer in replica.stepper.optimizers)
