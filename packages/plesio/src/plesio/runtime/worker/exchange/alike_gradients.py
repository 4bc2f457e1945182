"""The gradients of an island's ranks at a step: placed as the parameters are, and equal where ranks hold them alike.

Each rank sends a part of what several hold alike (`island_layout`), so each must have the gradient of the island's
whole batch. Ranks that take slices of it without DDP have not, and would train on a part of each gradient. The sums
show it: those of equal gradients differ by rounding, those of two slices of a batch by far more.
"""

import json
from collections.abc import Mapping
from dataclasses import astuple

import torch
from torch.distributed.tensor import DTensor

from plesio.core.errors import TaskError
from plesio.runtime.worker.exchange.local_part import block_of, local_part
from plesio.runtime.worker.island import Island

__all__ = ["check_gradients", "place_gradients"]

_ROUNDING = 1e-4
"""Difference of two ranks' sums, relative to the largest sum of magnitudes, that rounding stays below."""


def place_gradients(parameters: Mapping[str, torch.Tensor]) -> None:
    """Place each gradient as its parameter is, which those of sequence-parallel layers are not; all ranks call it."""
    for parameter in parameters.values():
        placed, gradient = getattr(parameter, "placements", None), parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != placed:
            parameter.grad = gradient.redistribute(placements=placed)


def check_gradients(parameters: Mapping[str, torch.Tensor], island: Island) -> None:
    """Refuse gradients that differ between ranks that hold the parameter alike; all ranks of the island call it.

    Raises:
        TaskError: There is one.
    """
    sums = [sum_ for parameter in parameters.values() for sum_ in _sums(parameter.grad)]
    values = iter(torch.stack([one.to(sums[0].device) for one in sums]).tolist())
    own = {n: [astuple(block_of(p, name=n)), next(values), next(values)] for n, p in parameters.items()}
    first: dict[tuple[object, ...], tuple[float, float]] = {}
    apart: dict[str, float] = {}
    largest = 0.0
    for text in island.all_texts(json.dumps(own)):
        for name, (block, total, magnitude) in json.loads(text).items():
            held = (name, *block)
            if held in first:
                largest = max(largest, magnitude, first[held][1])
                difference = max(abs(total - first[held][0]), abs(magnitude - first[held][1]))
                apart[name] = max(difference, apart.get(name, 0.0))
            first.setdefault(held, (total, magnitude))
    name = max(apart, key=lambda one: apart[one], default="")
    if name and apart[name] > _ROUNDING * largest:
        raise TaskError(
            f'the ranks of the island hold "{name}" alike and have different gradients of it: give all of them the '
            "whole batch (and one seed), or call the model in DistributedDataParallel where each takes a slice"
        )


def _sums(gradient: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the elements and that of their magnitudes."""
    if gradient is None:
        return torch.zeros(()), torch.zeros(())
    local = local_part(gradient)
    local = local.coalesce().values() if local.is_sparse else local
    return local.sum(dtype=torch.float32), local.abs().sum(dtype=torch.float32)
