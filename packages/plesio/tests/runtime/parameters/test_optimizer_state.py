from typing import Any

import pytest
import torch

from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.parameters.optimizer_spec import SUPPORTED_OPTIMIZERS
from plesio.runtime.parameters.optimizer_state import read_state, write_state

OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5, "centered": True}}


def built(name: str) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (5,), ()]
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    return parameters, SUPPORTED_OPTIMIZERS[name](parameters, lr=0.1, **OPTIONS.get(name, {}))


def step(parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("name", SUPPORTED_OPTIMIZERS)
def test_an_optimizer_goes_on_from_the_state_that_was_cut_and_put_together(name: str) -> None:
    parameters, optimizer = built(name)
    others, other = built(name)
    for seed in (1, 2):
        step(parameters, optimizer, seed=seed)
    named = [(str(number), p.detach(), "parameter", 0) for number, p in enumerate(parameters)]
    layout = SliceLayout.of(named, num_servers=3)  # type: ignore[arg-type]
    for slices in layout.servers:
        table, tensors = read_state(optimizer, [(parameters[int(piece.name)], piece) for piece in slices])
        payload = torch.cat([tensor.contiguous().view(torch.uint8) for tensor in tensors] or [torch.empty(0)])
        write_state(other, [(others[int(piece.name)], piece) for piece in slices], table=table, payload=payload)
    with torch.no_grad():
        for mine, theirs in zip(others, parameters, strict=True):
            mine.copy_(theirs)
    step(parameters, optimizer, seed=3)
    step(others, other, seed=3)
    for mine, theirs in zip(others, parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
