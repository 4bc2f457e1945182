"""Where all workers of a grid cut the network: rank 0 finds the cut, and tells the others."""

import itertools
import json
from typing import Any

from torch import nn

from plesio.core.errors import ConfigError, TaskError
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.grid.cutting import (
    Balance,
    Cut,
    Unit,
    balanced,
    layer_bytes,
    layer_operations,
    layer_seconds,
    units_of,
)
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.takeover import tell_text

__all__ = ["agreed_cut"]


def agreed_cut(
    layers: nn.Sequential, x: Any, *, num_stages: int, balance: Balance, group: Group | None, world: World
) -> Cut:
    """The cut that makes stages alike; all workers of the group ask for it together.

    Args:
        layers: The network's.
        x: A micro-batch.
        num_stages: K.
        balance: What is to be alike.
        group: The workers; None for one by itself.
        world: Where they are: in the virtual one layers are not timed, so that equal arguments give equal cuts.

    Raises:
        TaskError: The layers do not chain, or are too few.
    """
    if num_stages == 1:
        return Cut(())
    assert group is not None, "a grid of several stages has several workers"
    text = _found(layers, x, num_stages=num_stages, balance=balance, world=world) if group.rank == 0 else ""
    said = json.loads(tell_text(text, group=group, source=0))
    if "error" in said:
        raise TaskError(said["error"])
    return Cut(tuple(said["ends"]), tuple(said["costs"]), said["unit"])


def _found(layers: nn.Sequential, x: Any, *, num_stages: int, balance: Balance, world: World) -> str:
    try:
        unit, costs = _costs(layers, x, balance=balance, world=world)
        units = units_of(layers)
        of_units = [sum(costs[begin:end]) for begin, end in itertools.pairwise((0, *units))]
        ends = [units[number - 1] for number in balanced(of_units, num_stages)]
    except (ConfigError, TaskError) as error:
        return json.dumps({"error": str(error)})
    edges = (0, *ends, len(costs))
    sums = [sum(costs[begin:end]) for begin, end in itertools.pairwise(edges)]
    return json.dumps({"ends": ends, "costs": sums, "unit": unit})


def _costs(layers: nn.Sequential, x: Any, *, balance: Balance, world: World) -> tuple[Unit, list[float]]:
    if balance == "memory":
        return "bytes", layer_bytes(layers)
    if world == "virtual":
        return "operations", layer_operations(layers, x)
    return "s", layer_seconds(layers, x)
