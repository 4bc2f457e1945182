"""Updates one by one against synchronous steps: equal where nothing is late, and on quadratics where everything is."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from plesio.runtime.server.interleaved import InterleavedOptimizer
from plesio.runtime.server.step_rules import STEP_RULES

Make = Callable[[list[Tensor], float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "nesterov": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True),
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr),
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1),
    "amsgrad": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, amsgrad=True, weight_decay=0.01),
    "adamax": lambda parameters, lr: torch.optim.Adamax(parameters, lr=lr),
    "adagrad": lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr, lr_decay=0.01),
    "rmsprop": lambda parameters, lr: torch.optim.RMSprop(parameters, lr=lr),
    "centred": lambda parameters, lr: torch.optim.RMSprop(parameters, lr=lr, momentum=0.5, centered=True),
}
FEW, MANY = (2, 8), (2, 4, 8, 16, 32)


def train(
    make: Make, curvatures: Tensor, *, rate: float, num_workers: int, rounds: int, late: bool, start: float = 1.0
) -> Tensor:
    """``[rounds, dimensions]``: the parameters of the quadratic ½ Σ c x² at the end of each round.

    Late, the workers take turns: each trains on what was there just after its own last update.
    """
    parameter = torch.full_like(curvatures, start).requires_grad_()
    stepper = InterleavedOptimizer(make([parameter], rate))
    pulled = [parameter.detach().clone() for _ in range(num_workers)]
    path = []
    for turn in range(rounds * num_workers):
        worker = turn % num_workers
        if late:
            parameter.grad = curvatures * pulled[worker]
            versions = min(turn, num_workers - 1)
            stepper.step(weight=1 / num_workers, share=1 / num_workers, age=versions / num_workers)
            pulled[worker] = parameter.detach().clone()
        elif worker == 0:
            parameter.grad = curvatures * parameter.detach()
            stepper.step(weight=1.0)
        if worker == num_workers - 1:
            path.append(parameter.detach().clone())
    return torch.stack(path)


def largest_stable_rate(make: Make, *, num_workers: int, late: bool) -> float:
    """The largest rate, in steps of 5 %, at which a curvature of 1 still goes to its minimum."""

    def shrinks(rate: float) -> bool:
        path = train(
            make, torch.ones(1, dtype=torch.float64), rate=rate, num_workers=num_workers, rounds=300, late=late
        ).abs()
        return bool(path.isfinite().all()) and float(path[-20:].max()) < float(path[130:150].max())

    low, high = 0.02, 8.0
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if shrinks(middle) else (low, middle)
    return low


def test_all_classes_with_a_rule_are_tried():
    kinds = {type(make([torch.ones(1, requires_grad=True)], 0.1)) for make in OPTIMIZERS.values()}
    assert kinds == set(STEP_RULES)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_fresh_round_is_the_stock_optimizers_step(name: str):
    make = OPTIMIZERS[name]
    own, stock = (torch.randn(5, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    stepper, optimizer = InterleavedOptimizer(make([own], 0.1)), make([stock], 0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        gradient = torch.randn(5, generator=generator)
        own.grad, stock.grad = gradient.clone(), gradient.clone()
        stepper.step(weight=1.0)
        optimizer.step()
        assert torch.equal(own, stock)


@pytest.mark.parametrize("num_workers", FEW)
@pytest.mark.parametrize("nesterov", [True, False])
def test_parts_of_a_round_of_the_same_gradients_come_to_one_nesterov_step(num_workers: int, nesterov: bool):
    own = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    stock = own.detach().clone().requires_grad_()
    stepper = InterleavedOptimizer(torch.optim.SGD([own], lr=0.1, momentum=0.8, nesterov=nesterov))
    optimizer = torch.optim.SGD([stock], lr=0.1, momentum=0.8, nesterov=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):  # before the memory grows, at 1 / (1 - 0.8)
        gradients = torch.randn(num_workers, 5, dtype=torch.float64, generator=generator)
        for place, gradient in enumerate(gradients):
            own.grad = gradient.clone()
            stepper.step(weight=1 / num_workers, share=1 / num_workers, age=place / num_workers)
        stock.grad = gradients.mean(0)
        optimizer.step()
        torch.testing.assert_close(own, stock, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["adam", "adamw", "amsgrad", "adamax", "adagrad", "rmsprop"])
def test_a_round_of_equal_gradients_leaves_the_state_that_the_stock_step_leaves(name: str):
    own, stock = (torch.ones(4, dtype=torch.float64).requires_grad_() for _ in range(2))
    made, optimizer = OPTIMIZERS[name]([own], 0.0), OPTIMIZERS[name]([stock], 0.0)
    stepper = InterleavedOptimizer(made)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        gradient = torch.randn(4, dtype=torch.float64, generator=generator)
        for _ in range(4):
            own.grad = gradient.clone()
            stepper.step(weight=0.25, share=0.25, age=0.75)
        stock.grad = gradient.clone()
        optimizer.step()
    for key, value in optimizer.state[stock].items():
        torch.testing.assert_close(made.state[own][key], value, rtol=1e-9, atol=1e-12, check_dtype=False)


@pytest.mark.parametrize("name", ["adam", "adamax", "adagrad", "rmsprop"])
def test_what_is_normalised_by_has_the_noise_of_the_mean_and_not_of_one_worker(name: str):
    """One worker has 0.3 ± 1, the mean of sixteen 0.3 ± 0.25: divided by its own size it would count for a third."""
    own, stock = (torch.zeros(200, dtype=torch.float64).requires_grad_() for _ in range(2))
    stepper, optimizer = InterleavedOptimizer(OPTIMIZERS[name]([own], 0.01)), OPTIMIZERS[name]([stock], 0.01)
    generator = torch.Generator().manual_seed(3)
    for _ in range(60):
        gradients = 0.3 + torch.randn(16, 200, dtype=torch.float64, generator=generator)
        for gradient in gradients:
            own.grad = gradient.clone()
            stepper.step(weight=1 / 16, share=1 / 16, age=15 / 16)
        stock.grad = gradients.mean(0)
        optimizer.step()
    assert own.mean().item() == pytest.approx(stock.mean().item(), rel=0.2)


def test_a_gradient_far_too_large_is_divided_by_itself():
    parameter = torch.zeros(1).requires_grad_()
    stepper = InterleavedOptimizer(torch.optim.Adam([parameter], lr=0.01))
    for _ in range(80):
        parameter.grad = torch.ones(1)
        stepper.step(weight=1 / 8, share=1 / 8, age=7 / 8)
    before = parameter.item()
    parameter.grad = torch.full((1,), 1e6)
    stepper.step(weight=1 / 8, share=1 / 8, age=7 / 8)
    assert abs(parameter.item() - before) < 0.1


def test_an_update_that_covers_more_than_a_round_advances_the_memory_by_as_much():
    one, many = (torch.zeros(1, dtype=torch.float64).requires_grad_() for _ in range(2))
    steps, long = (torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in (one, many))
    stepper, at_once = InterleavedOptimizer(steps), InterleavedOptimizer(long)
    for _ in range(3):
        one.grad = torch.ones(1, dtype=torch.float64)
        stepper.step(weight=1.0, share=1.0, age=0.1)
    many.grad = torch.ones(1, dtype=torch.float64)
    at_once.step(weight=3.0, share=3.0, age=0.1)
    torch.testing.assert_close(long.state[many]["momentum_buffer"], steps.state[one]["momentum_buffer"])


def test_a_round_that_is_cut_off_is_not_lost():
    parameter = torch.zeros(1).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    stepper = InterleavedOptimizer(optimizer)
    parameter.grad = torch.ones(1)
    stepper.step(weight=0.25, share=0.25, age=0.5)
    assert "momentum_buffer" not in optimizer.state[parameter]
    stepper.end_round()
    assert optimizer.state[parameter]["momentum_buffer"].item() == pytest.approx(10 * (1 - 0.9**0.25))
    kept = copy.deepcopy(optimizer.state_dict())
    stepper.end_round()
    assert optimizer.state_dict()["state"] == kept["state"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [2, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 16, 32))])
def test_what_rates_are_stable_with_late_gradients(num_workers: int):
    """With momentum, once its memory has grown, four fifths of what BSP's heavy ball bears; without, three quarters."""
    momentum, plain = OPTIMIZERS["momentum"], OPTIMIZERS["sgd"]
    late = largest_stable_rate(momentum, num_workers=num_workers, late=True)
    assert late >= 0.8 * largest_stable_rate(momentum, num_workers=num_workers, late=False)
    assert largest_stable_rate(plain, num_workers=num_workers, late=True) >= 0.75 * largest_stable_rate(
        plain, num_workers=num_workers, late=False
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("num_workers", MANY)
@pytest.mark.parametrize(
    ("name", "rate"), [("sgd", 0.5), ("momentum", 0.2), ("nesterov", 0.2), ("adam", 0.01), ("rmsprop", 0.01)]
)
def test_late_gradients_come_as_far_as_bsp_in_as_many_rounds(name: str, rate: float, num_workers: int):
    curvatures = torch.logspace(-2.5, 0, 12, dtype=torch.float64)
    losses = {
        late: (train(OPTIMIZERS[name], curvatures, rate=rate, num_workers=num_workers, rounds=150, late=late) ** 2)
        @ curvatures
        for late in (True, False)
    }
    assert losses[True][-10:].mean() <= 1.25 * losses[False][-10:].mean() + 1e-3
