"""Cuts a network into stages: so that the slowest takes the least time, or the largest the least memory.

A list of layers is cut into K runs of neighbours that minimise the largest sum of costs; with n layers dynamic
programming finds the best of all in O(n^2 K). Costs are seconds, measured, or bytes; in the virtual world operations
instead of seconds: equal arguments give equal results there, and equal cuts. Rank 0 finds the cut, and the
others are told.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from plesio.core.errors import ConfigError, TaskError
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.worker.exchange.group import Group, broadcast_text

Balance = Literal["time", "memory"]
Unit = Literal["s", "operations", "bytes"]
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class NetworkCut:
    """Places at which a network is cut.

    Attributes:
        ends: After how many layers each stage but the last one ends.
        costs: Of each stage, in ``unit``; empty where the user has cut.
        unit: ``s`` or ``operations`` (forward and backward pass of a micro-batch), or ``bytes`` (of parameters).
    """

    ends: tuple[int, ...]
    costs: tuple[float, ...] = ()
    unit: Unit = "s"

    def words(self, num_layers: int) -> str:
        """Describe it in one line.

        >>> NetworkCut((2, 3), (0.004, 0.002, 0.003)).words(5)
        '3 stages of 5 layers: 0-1 (4.0 ms), 2 (2.0 ms), 3-4 (3.0 ms)'
        """
        stages = []
        for number, (begin, end) in enumerate(pairwise((0, *self.ends, num_layers))):
            name = str(begin) if end == begin + 1 else f"{begin}-{end - 1}"
            cost = f" ({_COST_TEXTS[self.unit](self.costs[number])})" if self.costs else ""
            stages.append(name + cost)
        return f"{len(stages)} stages of {num_layers} layers: {', '.join(stages)}"


_COST_TEXTS: Mapping[Unit, Callable[[float], str]] = {
    "s": lambda cost: f"{1e3 * cost:.1f} ms",
    "operations": lambda cost: f"{cost / 1e6:.3g} million operations",
    "bytes": lambda cost: f"{cost:,.0f} B",
}


def layers_of(
    stages: nn.Sequential | Sequence[nn.Module], cuts: Sequence[int] | None = None
) -> tuple[nn.Sequential, NetworkCut | None]:
    """Return the network as one chain of layers, and its cut: the user's ``cuts``, or that of a list of stages.

    Raises:
        TaskError: It is no chain of modules, or stages have parameters or buffers in common.
    """
    if isinstance(stages, nn.Sequential):
        return stages, None if cuts is None else NetworkCut(tuple(cuts))
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, nn.Module) for stage in stages):
        raise TaskError(f"stages are a torch.nn.Sequential, or a list of modules; this is a {type(stages).__name__}")
    if not stages:
        raise TaskError("there are no stages; give a torch.nn.Sequential, or a list of modules")
    return nn.Sequential(*stages), NetworkCut(tuple(range(1, len(stages)) if cuts is None else cuts))


def parts(layers: nn.Sequential, cut: NetworkCut) -> list[nn.Sequential]:
    """Cut the network into its stages.

    Raises:
        ConfigError: The cut does not fit.
        TaskError: Two stages have weights in common, or one has nothing to train.
    """
    ends = (0, *cut.ends, len(layers))
    if any(end <= begin for begin, end in pairwise(ends)):
        raise ConfigError(
            f"cuts={list(cut.ends)}: write ascending places between 1 and {len(layers) - 1}, one fewer than stages"
        )
    names = list(layers._modules)  # named_children leaves out a layer that is there twice
    stages = []
    owner: dict[int, tuple[int, str]] = {}
    for number, (begin, end) in enumerate(pairwise(ends)):
        stage = nn.Sequential()
        for name in names[begin:end]:
            stage.add_module(name, layers.get_submodule(name))
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            other, theirs = owner.setdefault(id(tensor), (number, name))
            if other != number:
                raise TaskError(
                    f"stages {other} and {number} share weights ({theirs} is {name}): each would train its own copy; "
                    "cut elsewhere, or untie them"
                )
        if not any(weight.requires_grad for weight in stage.parameters()):
            raise TaskError(f"stage {number} has nothing to train; cut elsewhere, or write fewer stages")
        stages.append(stage)
    return stages


def balanced(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Return the layers after which each stage but the last ends, for the least largest sum of costs.

    >>> balanced([1, 1, 1, 3, 3], 3)
    (3, 4)

    Raises:
        ConfigError: There are fewer layers than stages.
    """
    count = len(costs)
    if count < num_stages:
        raise ConfigError(
            f"{num_stages} stages of {count} layers with weights: a stage has one at least; write fewer stages"
        )
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [sums[:]]  # best[k][n]: the largest cost of the first n layers in k + 1 stages
    chosen: list[list[int]] = [[0] * (count + 1)]
    for stage in range(1, num_stages):
        row, places = [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(stage + 1, count + 1):
            for begin in range(stage, end):
                worst = max(best[stage - 1][begin], sums[end] - sums[begin])
                if worst < row[end]:
                    row[end], places[end] = worst, begin
        best.append(row)
        chosen.append(places)
    ends: list[int] = []
    end = count
    for stage in range(num_stages - 1, 0, -1):
        end = chosen[stage][end]
        ends.insert(0, end)
    return tuple(ends)


def units_of(layers: nn.Sequential) -> list[int]:
    """Return where the network may be cut, and its end: each part up to there has something to train.

    >>> units_of(nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
    [3, 4]
    """
    trained = [number for number, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters())]
    return [*trained[1:], len(layers)]


def layer_bytes(layers: nn.Sequential) -> list[float]:
    return [float(sum(p.numel() * p.element_size() for p in layer.parameters())) for layer in layers]


def layer_seconds(layers: nn.Sequential, example: Any) -> list[float]:
    """Time each layer's forward and backward pass of ``example``, in seconds; medians. Its results have no effect.

    Raises:
        TaskError: A layer cannot take what the one before hands on.
    """
    with _without_effect(layers):
        rounds = [_costs(layers, example, reading=time.perf_counter) for _ in range(1 + _REPEATS)]
    return [statistics.median(times) for times in zip(*rounds[1:], strict=True)]


def layer_operations(layers: nn.Sequential, example: Any) -> list[float]:
    """Count the operations of each layer's forward and backward pass of ``example``. Its results have no effect.

    They are those of matrix products and convolutions, and one for each number that any operation writes.

    Raises:
        TaskError: A layer cannot take what the one before hands on.
    """
    with _without_effect(layers), _Counted() as counted:  # type: ignore[no-untyped-call]
        return _costs(layers, example, reading=lambda: counted.number)


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations."""

    number = 0.0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operation(*args, **(kwargs or {}))
        count = flop_registry.get(operation.overloadpacket)
        self.number += 0 if count is None else count(*args, **(kwargs or {}), out_val=output)
        self.number += sum(tensor.numel() for tensor in _listed(output) if isinstance(tensor, Tensor))
        return output


@contextmanager
def _without_effect(layers: nn.Sequential) -> Iterator[None]:
    """Restore random numbers and buffers after this context."""
    buffers = [buffer.clone() for buffer in layers.buffers()]
    random_state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random_state)
        for buffer, before in zip(layers.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _costs(layers: nn.Sequential, example: Any, *, reading: Callable[[], float]) -> list[float]:
    """Measure by how much ``reading`` grows in the passes of each layer."""
    given = _listed(example)
    costs = []
    for number, layer in enumerate(layers):
        given = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in given]
        passed = [tensor.clone() for tensor in given]  # a layer may work in place
        before = reading()
        try:
            output = layer(passed[0] if len(passed) == 1 else tuple(passed))
        except (RuntimeError, TypeError, IndexError) as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
            reason = str(error).splitlines()[0]
            raise TaskError(
                f"the stages do not chain: layer {number} ({type(layer).__name__}) cannot take {shapes} ({reason})"
            ) from error
        outputs: list[Tensor] = _listed(output)
        wanted = [tensor for tensor in given if tensor.requires_grad]
        wanted += [p for p in layer.parameters() if p.requires_grad]
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        if wanted and differentiable:
            ones = [torch.ones_like(tensor) for tensor in differentiable]
            torch.autograd.grad(differentiable, wanted, ones, allow_unused=True)
        costs.append(reading() - before)
        given = outputs
    return costs


def agreed_cut(
    layers: nn.Sequential, x: Any, *, num_stages: int, balance: Balance, group: Group | None, world: World
) -> NetworkCut:
    """Find the cut that makes stages alike; all workers of the group call it together.

    In the virtual world layers are not timed, so that equal arguments give equal cuts.

    Raises:
        TaskError: The layers do not chain, or are too few.
    """
    if num_stages == 1:
        return NetworkCut(())
    assert group is not None, "a grid of several stages has several workers"
    text = _found(layers, x, num_stages=num_stages, balance=balance, world=world) if group.rank == 0 else ""
    found = json.loads(broadcast_text(text, group=group, source=0))
    if "error" in found:
        raise TaskError(found["error"])
    return NetworkCut(tuple(found["ends"]), tuple(found["costs"]), found["unit"])


def _found(layers: nn.Sequential, x: Any, *, num_stages: int, balance: Balance, world: World) -> str:
    """Find the cut; returns it as the text that all workers are told, or why there is none."""
    unit: Unit = "bytes"
    try:
        if balance == "memory":
            costs = layer_bytes(layers)
        elif world == "virtual":
            unit, costs = "operations", layer_operations(layers, x)
        else:
            unit, costs = "s", layer_seconds(layers, x)
        units = units_of(layers)
        of_units = [sum(costs[begin:end]) for begin, end in pairwise((0, *units))]
        ends = [units[number - 1] for number in balanced(of_units, num_stages)]
    except (ConfigError, TaskError) as error:
        return json.dumps({"error": str(error)})
    sums = [sum(costs[begin:end]) for begin, end in pairwise((0, *ends, len(costs)))]
    return json.dumps({"ends": ends, "costs": sums, "unit": unit})
