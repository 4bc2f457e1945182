"""Models and loops that do what most do not: trained like any other, or refused in one line that says what to do."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ExchangeError, TaskError, WorkerLostError
from plesio.cost.cluster import Cluster
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.testing import Ending, LocalJob
from runtime import unusual_programs
from runtime.unusual_programs import NUM_STEPS, Branches, Warm, batch, loss_of, optimizer_of, used_by, warm_loss
from support.adaptive_specs import STAYS

pytestmark = pytest.mark.timeout(120)

PROGRAMS = Path(__file__).with_name("unusual_programs.py")


def run(function: str, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(2) as job:
        return job.run(PROGRAMS, function, timeout_s=100, **arguments)


def in_one_process(*, from_step: int) -> dict[str, list[float]]:
    """Return the result of two ranks: a step with the mean of their gradients; parameters without use have none."""
    model = Branches()
    optimizer = optimizer_of(model)
    for step in range(NUM_STEPS):
        for rank in range(2):
            (loss_of(model, batch(step, rank), used_by(rank, step=step, from_step=from_step)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: tensor.reshape(-1).tolist() for name, tensor in model.state_dict().items()}


def close_to(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


def test_workers_may_use_different_parts_of_a_model():
    expected = in_one_process(from_step=0)
    endings = run("branches", policy="bsp")
    for ending in endings.values():
        assert ending.error is None, ending.trace
        close_to(ending.value, expected)


def test_workers_of_the_virtual_world_may_too():
    expected = in_one_process(from_step=2)

    def work(_job: VirtualJob) -> dict[str, list[float]]:
        return unusual_programs.branches(policy="bsp", from_step=2)

    for found in simulate(work, num_workers=2, cluster=Cluster.one_host(2)).values():
        close_to(found, expected)


def test_a_part_that_is_left_out_later_only_is_one_clear_line():
    endings = run("branches", policy="bsp", from_step=3)
    errors = {ending.error for ending in endings.values()}
    assert ExchangeError.__name__ in errors, errors
    [message] = [ending.message for ending in endings.values() if ending.error == ExchangeError.__name__][:1]
    assert "some parameters no gradient" in message
    assert "\n" not in message


def test_a_step_may_have_several_forward_passes_none_of_which_uses_all_parameters():
    expected = in_one_process(from_step=NUM_STEPS)
    for ending in run("branches", policy="bsp", from_step=NUM_STEPS).values():
        assert ending.error is None, ending.trace
        close_to(ending.value, expected)


@pytest.mark.parametrize("policy", ["bsp", pytest.param(STAYS, marks=pytest.mark.slow, id="adaptive")])
def test_a_loss_may_be_computed_beside_the_forward_pass(policy: str):
    expected = in_one_process(from_step=NUM_STEPS)
    for ending in run("beside", policy=policy).values():
        assert ending.error is None, ending.trace
        close_to(ending.value, expected)


@pytest.mark.parametrize("policy", ["bsp", pytest.param(STAYS, marks=pytest.mark.slow, id="adaptive")])
@pytest.mark.parametrize("by", ["autograd", "func", "func of copies"])
def test_a_script_may_write_the_gradients_itself(policy: str, by: str):
    expected = in_one_process(from_step=NUM_STEPS)
    for ending in run("written", policy=policy, by=by).values():
        assert ending.error is None, ending.trace
        close_to(ending.value, expected)


def test_a_backward_pass_that_is_not_averaged_is_explained_after_the_first_step():
    messages = [ending.message for ending in run("twice", policy="bsp").values()]
    for message in messages:
        assert "after step 1" in message
        assert "gradients were not averaged (under bsp, make one backward() of all losses of a forward pass)" in message


def warm_in_one_process(*, spare: bool, part: int, passes: int) -> dict[str, list[float]]:
    """Return the result of two ranks that use parameters beside the forward pass, by the mean of their gradients."""
    model = Warm(spare=spare)
    optimizer = optimizer_of(model)
    for step in range(NUM_STEPS):
        for rank, number in itertools.product(range(2), range(passes)):
            loss = warm_loss(model, batch(step + 100 * number, rank), uses=rank < part)
            (loss / 2 / passes).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: tensor.reshape(-1).tolist() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("policy", ["bsp", pytest.param(STAYS, marks=pytest.mark.slow, id="adaptive")])
@pytest.mark.parametrize(
    ("spare", "part", "passes"),
    [(False, 2, 1), (True, 2, 1), (False, 1, 1), (False, 2, 2), (True, 0, 2)],
    ids=["all", "others_are_nobodys", "on_one_rank", "accumulated", "unused"],
)
def test_a_loss_may_use_parameters_beside_the_forward_pass(policy: str, spare: bool, part: int, passes: int):
    expected = warm_in_one_process(spare=spare, part=part, passes=passes)
    for ending in run("warm", policy=policy, spare=spare, part=part, passes=passes).values():
        assert ending.error is None, ending.trace
        close_to(ending.value, expected)


def test_a_loss_that_uses_one_later_only_is_explained():
    endings = run("warm", policy="bsp", from_step=2).values()
    assert TaskError.__name__ in {ending.error for ending in endings}
    for ending in endings:  # a worker that the other leaves first passes its words on
        assert "which the first step's had not" in ending.message, ending.trace
        assert "or use the parameter from the first step on" in ending.message


@pytest.mark.parametrize(
    "policy", [*(pytest.param(slow, marks=pytest.mark.slow) for slow in ("asp", "adaptive")), "local_sgd:2"]
)
def test_a_parameter_without_dimensions_is_trained(policy: str):
    for ending in run("branches", policy=policy).values():
        assert ending.error is None, ending.trace
        assert ending.value["scale"][0] != 1.5


@pytest.mark.parametrize("clip", [False, True])
def test_a_gradient_that_one_worker_spoils_after_the_mean_ends_the_run_and_no_process_is_aborted(clip: bool):
    endings = run("poke", policy="bsp", rank=1, clip=clip)
    assert endings[1].error == ExchangeError.__name__
    assert "must do the same on every worker" in endings[1].message
    assert endings[0].error == WorkerLostError.__name__, endings[0].trace
    assert "worker 1 ended with an error (ExchangeError: a gradient was finite" in endings[0].message


def test_clipping_is_no_harm():
    for ending in run("poke", policy="bsp", rank=-1, clip=True).values():
        assert ending.error is None, ending.trace


def test_complex_parameters_are_refused():
    model = nn.ParameterDict({"real": nn.Parameter(torch.ones(2)), "phase": nn.Parameter(torch.ones(2) * 1j)})
    with pytest.raises(TaskError, match=r'"phase" is complex.*torch\.view_as_complex\(phase\)'):
        Replica(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_optimizer_that_evaluates_the_loss_by_itself_is_refused():
    model = nn.Linear(2, 1)
    with pytest.raises(TaskError, match=r"LBFGS evaluates the loss by itself"):
        plesio.join(model, torch.optim.LBFGS(model.parameters()))


def test_what_is_unfrozen_later_is_refused_at_the_step():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        model(torch.ones(1, 2)).sum().backward()
        session.step()
        model.bias.requires_grad_(True)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(TaskError, match=r'"bias" was frozen when this session began.*; close it and join anew'):
            session.step()


def test_what_is_added_to_the_optimizer_later_is_refused_at_the_step():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with plesio.join(model, optimizer) as session:
        optimizer.add_param_group({"params": [model.bias]})
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(TaskError, match="the optimizer held 1 parameters when this session began and holds 2 now"):
            session.step()
