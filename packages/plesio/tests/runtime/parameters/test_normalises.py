"""Only optimizers that are known to step in proportion to the gradient count as such."""

from collections.abc import Callable

import pytest
import torch

from plesio.runtime.parameters.optimizer_spec import SUPPORTED_OPTIMIZERS, accumulates, normalises


class NormalisedGradient(torch.optim.Optimizer):
    """Steps of one length, without state: its groups have torch's names for SGD's options and no others."""

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad / parameter.grad.norm(), alpha=group["lr"])


class SignSgd(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(0)))]


def with_scheduler(rate: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters(), lr=rate)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    return optimizer


LINEAR: dict[str, Callable[[float], torch.optim.Optimizer]] = {
    "plain": lambda rate: torch.optim.SGD(parameters(), lr=rate),
    "momentum": lambda rate: torch.optim.SGD(parameters(), lr=rate, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda rate: torch.optim.SGD(parameters(), lr=rate, momentum=0.9, nesterov=True),
    "average": lambda rate: torch.optim.ASGD(parameters(), lr=rate),
    "scheduled": with_scheduler,
}


@pytest.mark.parametrize("name", LINEAR)
def test_sgd_does_not_normalise(name: str) -> None:
    assert not normalises(LINEAR[name](0.1))


@pytest.mark.parametrize("optimizer", [NormalisedGradient, SignSgd])
def test_an_optimizer_of_ones_own_counts_as_one_that_normalises(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    assert normalises(optimizer(parameters(), lr=0.1))  # type: ignore[call-arg]


@pytest.mark.parametrize("name", sorted(SUPPORTED_OPTIMIZERS.keys() - {"SGD", "ASGD"}))
def test_so_do_all_others_of_torch(name: str) -> None:
    assert normalises(SUPPORTED_OPTIMIZERS[name](parameters(), lr=0.1))


def test_a_step_that_was_replaced_is_not_known() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    optimizer.step = lambda closure=None: None  # type: ignore[method-assign, misc, assignment]
    assert normalises(optimizer)


def test_adagrad_alone_never_forgets():
    assert {name for name, kind in SUPPORTED_OPTIMIZERS.items() if accumulates(kind(parameters(), lr=0.1))} == {
        "Adagrad"
    }
