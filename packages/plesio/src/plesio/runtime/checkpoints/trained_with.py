"""The optimizer that a checkpoint was trained with, and whether the program still has it.

Class and groups must be those of the checkpoint. Settings may differ in the program, and those of the checkpoint hold:
schedulers have changed them since, and the run goes on with what they have made of them. A difference is told.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from plesio.core.errors import ConfigError, DataError
from plesio.core.exact import own_numbers
from plesio.runtime.checkpoints.folder import OptimizerRecord
from plesio.runtime.worker.exchange.replica import Replica

_ANEW = "or begin anew (resume=no, or another folder)"
_ASIDE = ("params", "param_names", "foreach", "fused", "capturable", "initial_lr")
"""How a step is computed, and what belongs to schedulers."""


def records(replica: Replica) -> tuple[OptimizerRecord, ...]:
    names = {id(parameter): name for name, parameter in replica.model.named_parameters()}
    return tuple(_record(optimizer, names) for optimizer in replica.stepper.optimizers)


def _record(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> OptimizerRecord:
    groups = optimizer.param_groups
    return OptimizerRecord(
        name=type(optimizer).__qualname__,
        groups=tuple(tuple(names[id(p)] for p in group["params"] if id(p) in names) for group in groups),
        settings=tuple({key: _text(value) for key, value in group.items() if key not in _ASIDE} for group in groups),
    )


def _text(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, torch.Tensor) else own_numbers(value))


def changes(here: Sequence[OptimizerRecord], there: Sequence[OptimizerRecord]) -> list[str]:
    """List the settings in which the program differs from the checkpoint, a line for each.

    Raises:
        DataError: It is another optimizer, or has other groups.
    """
    ours, theirs = _names(here), _names(there)
    if ours != theirs:
        raise DataError(
            f"the checkpoint was trained with {theirs}, and this program has {ours}: make it {theirs} again, {_ANEW}"
        )
    return [line for one, other in zip(here, there, strict=True) for line in _changes(one, other)]


def _names(optimizers: Sequence[OptimizerRecord]) -> str:
    return ", ".join(one.name for one in optimizers)


def _changes(here: OptimizerRecord, there: OptimizerRecord) -> Iterator[str]:
    if len(here.groups) != len(there.groups):
        raise DataError(
            f"the checkpoint's optimizer has {len(there.groups)} parameter groups, this one {len(here.groups)}; "
            f"make the groups as they were, {_ANEW}"
        )
    for number, (ours, theirs) in enumerate(zip(here.groups, there.groups, strict=True)):
        if ours != theirs:
            names = [name for name in (*ours, *theirs) if (name in ours) != (name in theirs)] or ours
            raise DataError(
                f'the checkpoint\'s optimizer has another parameter group {number}, which differs in "{names[0]}"; '
                f"make the groups as they were, {_ANEW}"
            )
        now, then = here.settings[number], there.settings[number]
        for key in sorted(now.keys() & then.keys()):
            if now[key] != then[key]:
                yield (
                    f"{here.name}'s {key} (group {number}) is {now[key]} in the program and was {then[key]} when the "
                    "run began: the checkpoint's holds; set it within the loop to change it"
                )


def check_plain(replica: Replica) -> None:
    """Check that all that the optimizer has beside tensors can be read again.

    It raises ConfigError if it has something else than numbers, texts, and lists and tables of them.
    """
    for number, options in enumerate(replica.stepper.options()):
        _check(options, f"param_groups[{number}]")
    names = {id(parameter): name for name, parameter in replica.model.named_parameters()}
    for parameter, state in replica.optimizer.state.items():
        _check(own_numbers(state), f'state["{names.get(id(parameter), "?")}"]')


def _check(value: Any, path: str) -> None:
    if isinstance(value, torch.Tensor) or type(value) in (type(None), bool, int, float, str):
        return
    if type(value) in (list, tuple):
        for at, one in enumerate(value):
            _check(one, f"{path}[{at}]")
    elif type(value) is dict and all(type(key) is str for key in value):
        for key, one in value.items():
            _check(one, f'{path}["{key}"]')
    else:
        kind = type(value)
        raise ConfigError(
            f"the optimizer cannot be saved: its {path} is a {kind.__module__}.{kind.__qualname__}, and only numbers, "
            "texts, tensors, and lists and tables of them can be"
        )
