"""An optimizer's moments in local steps, against its moments of the mean gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

import plesio
from plesio.core.errors import ExchangeError
from plesio.cost.cluster import Cluster
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.exchange.mean_moments import MeanMoments, can_share_moments
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.workers import cluster_of_racks, workers_of

RATE = 0.01
Make = Callable[[list[Tensor]], Optimizer]
MAKES: dict[str, Make] = {
    "adam": lambda parameters: Adam(parameters, lr=RATE, betas=(0.9, 0.99)),
    "adam without momentum": lambda parameters: Adam(parameters, lr=RATE, betas=(0.0, 0.99)),
    "adamw": lambda parameters: AdamW(parameters, lr=RATE, betas=(0.9, 0.99), weight_decay=0.1),
    "rmsprop": lambda parameters: RMSprop(parameters, lr=RATE),
    "rmsprop with momentum": lambda parameters: RMSprop(parameters, lr=RATE, momentum=0.9),
    "adagrad": lambda parameters: Adagrad(parameters, lr=RATE),
}
NUM_NUMBERS, NUM_STEPS = 400, 600


def squares_of(optimizer: Optimizer, parameter: Tensor) -> Tensor:
    """The mean square that it divides by the root of."""
    state: dict[str, Any] = optimizer.state[parameter]
    if "exp_avg_sq" in state:
        found: Tensor = state["exp_avg_sq"] / (1 - 0.99 ** float(state["step"]))
        return found
    return state["square_avg"] if "square_avg" in state else state["sum"] / float(state["step"])


@pytest.mark.parametrize("num_workers", [2, 4, 16])
@pytest.mark.parametrize("name", MAKES)
def test_squares_are_those_of_the_mean_gradient(name: str, num_workers: int):
    """Signal and noise differ from number to number: half have a signal as large as a worker's noise, half none."""
    torch.manual_seed(0)
    signal = torch.arange(NUM_NUMBERS) % 2
    parameter = nn.Parameter(torch.zeros(NUM_NUMBERS))
    optimizer = MAKES[name]([parameter])
    MeanMoments(optimizer, num_replicas=num_workers)
    found = torch.zeros(2)
    for step in range(NUM_STEPS):
        with torch.no_grad():
            parameter.zero_()  # a decay of the parameters is no gradient
        parameter.grad = signal + torch.randn(NUM_NUMBERS)
        optimizer.step()
        if step >= NUM_STEPS // 2:
            squares = squares_of(optimizer, parameter)
            assert squares.min() >= 0
            found += torch.stack([squares[::2].mean(), squares[1::2].mean()]) / (NUM_STEPS // 2)
    expected = torch.tensor([1 / num_workers, 1 + 1 / num_workers])
    # m begins with one gradient, which Adagrad never forgets: of 600 steps about ten have too much noise
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("name", MAKES)
def test_one_worker_is_everybody(name: str):
    parameters = [nn.Parameter(torch.zeros(8)) for _ in range(2)]
    plain, kept = (MAKES[name]([parameter]) for parameter in parameters)
    MeanMoments(kept, num_replicas=1)
    for step in range(20):
        gradient = torch.randn(8, generator=torch.Generator().manual_seed(step))
        for parameter in parameters:
            parameter.grad = gradient.clone()
        plain.step()
        kept.step()
    assert torch.equal(*parameters)


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop with momentum"])
def test_after_meeting_each_goes_on_as_all_went_on_average(name: str):
    """By its momentum alone, the next step is a mean one of those that led to the meeting."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(50))
    optimizer = MAKES[name]([parameter])
    moments = MeanMoments(optimizer, num_replicas=8)
    for _ in range(30):
        parameter.grad = torch.randn(50)
        optimizer.step()
    moments.begun()
    progress = 30 * RATE * torch.randn(50)
    moments.met({parameter: progress})
    [group], state = optimizer.param_groups, optimizer.state[parameter]
    if "momentum_buffer" in state:
        step = -RATE * state["momentum_buffer"]
    else:
        momentum = state["exp_avg"] / (1 - 0.9 ** float(state["step"]))
        step = -RATE * momentum / (squares_of(optimizer, parameter).sqrt() + group["eps"])
        step -= RATE * group["weight_decay"] * parameter.detach()
    torch.testing.assert_close(step, progress / 30)


@pytest.mark.parametrize("name", ["adam", "rmsprop with momentum"])
def test_a_meeting_that_ends_later_leaves_what_was_learnt_meanwhile(name: str):
    """The momentum is as if it had ended at once; all gradients are 1 or -1, so that squares are 1 at any time."""
    progress = 30 * RATE * torch.randn(50, generator=torch.Generator().manual_seed(1))
    found = []
    for num_behind in (0, 4):
        parameter = nn.Parameter(torch.zeros(50))
        optimizer = MAKES[name]([parameter])
        moments = MeanMoments(optimizer, num_replicas=1, behind=True)
        signs = torch.Generator().manual_seed(0)
        for step in range(34):
            if step == 30:
                moments.begun()
            if step == 30 + num_behind:
                moments.met({parameter: progress})
            parameter.grad = 2.0 * torch.randint(2, (50,), generator=signs) - 1
            optimizer.step()
        if num_behind == 4:
            moments.met({parameter: progress})
        state = optimizer.state[parameter]
        found.append(state["momentum_buffer" if "momentum_buffer" in state else "exp_avg"].clone())
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("make", "can"),
    [
        *((make, True) for make in MAKES.values()),
        (lambda parameters: SGD(parameters, lr=RATE), False),
        (lambda parameters: Adam(parameters, amsgrad=True), False),
        (lambda parameters: RMSprop(parameters, centered=True), False),
        (lambda parameters: Adagrad(parameters, lr_decay=0.1), False),
        (lambda parameters: AdamW(parameters, maximize=True), False),
    ],
)
def test_it_is_known_whose_moments_can_be_shared(make: Make, can: bool):
    assert can_share_moments(make([nn.Parameter(torch.zeros(1))])) == can


NUM_WORKERS, NUM_FEATURES, PERIOD = 8, 20, 4


def train(policy: str, job: VirtualJob, *, make: Make = MAKES["adam"], num_steps: int = 80) -> tuple[Tensor, Tensor]:
    """v of the squared error of a linear model, on labels of which most is noise, and the model."""
    torch.manual_seed(5)
    model = nn.Linear(NUM_FEATURES, 1, bias=False)
    optimizer = make(list(model.parameters()))
    noise = torch.Generator().manual_seed(job.place.rank)
    with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(job=job, info=RunInfo(seed=0))) as it:
        for _ in range(num_steps):
            x = torch.randn(4, NUM_FEATURES, generator=noise)
            y = x.sum(1, keepdim=True) / NUM_FEATURES + 2 * torch.randn(4, 1, generator=noise)
            loss = (model(x) - y).square().mean()
            loss.backward()
            it.step(loss)
    return squares_of(optimizer, model.weight).clone(), model.weight.detach().clone()


def mean_square(policy: str, cluster: Cluster | None = None) -> float:
    where = Cluster.one_host(NUM_WORKERS) if cluster is None else cluster
    simulation = simulate(lambda job: train(policy, job), num_workers=NUM_WORKERS, cluster=where)
    return float(torch.stack([squares for squares, _ in workers_of(simulation)]).mean())


def test_a_run_of_local_steps_ends_with_the_squares_of_synchronous_ones():
    synchronous = mean_square("bsp")
    assert mean_square(f"local_sgd:{PERIOD}") > 4 * synchronous, "or there is nothing to mend"
    assert mean_square(f"local_sgd:{PERIOD},moments=mean") == pytest.approx(synchronous, rel=0.25)
    assert mean_square(f"local_sgd:{PERIOD},delay=2,moments=mean") == pytest.approx(synchronous, rel=0.25)
    assert mean_square(f"diloco:{PERIOD},outer_lr=0.5,moments=mean") == pytest.approx(synchronous, rel=0.25)


def test_under_diloco_with_plain_outer_steps_they_are_those_of_local_steps():
    plain = f"diloco:{PERIOD},outer=sgd,outer_lr=1,outer_momentum=0,moments=mean"
    found = [
        workers_of(
            simulate(
                lambda job, policy=policy: train(policy, job),  # type: ignore[misc]
                num_workers=3,
                cluster=Cluster.one_host(3),
            )
        )
        for policy in (plain, f"local_sgd:{PERIOD},moments=mean")
    ]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_racks_end_with_the_squares_of_synchronous_steps_too():
    racks = cluster_of_racks([2, 2, 2, 2])
    synchronous = mean_square("bsp", racks)
    assert mean_square(f"hier:bsp/local_sgd:{PERIOD}", racks) > 2 * synchronous, "or there is nothing to mend"
    assert mean_square(f"hier:bsp/local_sgd:{PERIOD},moments=mean", racks) == pytest.approx(synchronous, rel=0.25)


@pytest.mark.parametrize("rest", ["", ",compress=qsgd:8", ",delay=2", ",inner_rate=0.5,momentum=0.4"])
def test_replicas_are_equal_where_workers_have_met(rest: str):
    simulation = simulate(
        lambda job: train(f"local_sgd:{PERIOD},moments=mean{rest}", job, num_steps=3 * PERIOD),
        num_workers=3,
        cluster=Cluster.one_host(3),
    )
    first, *others = [weight for _, weight in workers_of(simulation)]
    for other in others:
        assert torch.equal(first, other)


@pytest.mark.parametrize(("several", "named"), [(False, "SGD"), (True, "list of Adam and SGD")])
def test_an_optimizer_without_such_moments_is_refused_in_one_line(several: bool, named: str):
    def work(job: VirtualJob) -> None:
        model = nn.Linear(2, 1)
        list_of_two = [Adam([model.weight], lr=RATE), SGD([model.bias], lr=RATE)]
        plesio.join(
            model, list_of_two if several else SGD(model.parameters(), lr=RATE), policy="local_sgd:4,moments=mean"
        )

    with pytest.raises(ExchangeError, match=rf"moments=mean is for Adam, .* not for this {named}; leave it out"):
        simulate(work, num_workers=2, cluster=Cluster.one_host(2)).values()
