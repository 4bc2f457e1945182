"""One worker's own part of a checkpoint, in ``worker-0.pt`` and so on: plain values and tensors, nothing that runs.

If workers step by themselves, each has an optimizer's state of its own; under BatchNorm each has seen other samples. Of
an island each rank has its own part: ``worker-0.1.pt`` is of rank 1 of worker 0.
"""

import random
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from plesio.core.errors import DataError
from plesio.runtime.checkpoints.folder import HashedFile, WrittenFile
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.tensors import load_optimizer_state, state_of
from plesio.runtime.worker.exchange.local_part import part_kept
from plesio.runtime.worker.exchange.replica import Replica


def name_of(seat: Seat | int) -> str:
    return f"worker-{seat}.pt"


def write(path: Path, values: dict[str, Any]) -> WrittenFile:
    """Write a worker's values, on the disk when this returns."""
    with HashedFile(path) as file:
        torch.save(values, cast(IO[bytes], file))
    return file.written


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote; DataError if it cannot be read, or holds something that could run."""
    try:
        values = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    except Exception as error:  # pickle's own, which torch raises for anything that is no plain value
        raise DataError(f"{path} holds more than plain values and tensors: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} holds a {type(values).__name__}, and not a worker's values")
    return values


def own_state(replica: Replica, *, optimizer: bool) -> dict[str, Any]:
    """Copy this worker's buffers and options, and its optimizer's state if that is its own."""
    values: dict[str, Any] = {
        "buffers": {name: buffer.detach().to("cpu", copy=True) for name, buffer in replica.model.named_buffers()},
        # its schedule has gone by its own steps
        "groups": replica.stepper.options(),
    }
    if optimizer:
        state = state_of(replica)["optimizer"]["state"]
        values["optimizer"] = {
            name: {key: part_kept(value) for key, value in entries.items()} for name, entries in state.items()
        }
    return values


@torch.no_grad()
def take_own_state(replica: Replica, values: dict[str, Any]) -> None:
    for name, buffer in replica.model.named_buffers():
        if name in values["buffers"]:
            buffer.copy_(values["buffers"][name])
    for group, saved in zip(replica.optimizer.param_groups, values["groups"], strict=True):
        group.update(saved)
    if "optimizer" in values:
        load_optimizer_state(replica, values["optimizer"])


def random_states() -> dict[str, Any]:
    numpy: Any = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": _lists(random.getstate()),
        "numpy": [str(numpy[0]), [int(word) for word in numpy[1]], *numpy[2:]],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, words, *rest = states["numpy"]
    np.random.set_state((name, np.array(words, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])


def _lists(value: Any) -> Any:
    return [_lists(one) for one in value] if isinstance(value, tuple) else value
