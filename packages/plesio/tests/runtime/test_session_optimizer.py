"""``session.optimizer`` and ``session.shared``: what frameworks that own the loop hold, alone and in two processes."""

import copy
import pickle
import runpy
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ConfigError, DataError, TaskError
from support.processes import on_processes

PROGRAM = Path(__file__).with_name("surface_programs.py")
PROGRAMS = runpy.run_path(str(PROGRAM))
POLICIES = ["bsp", "ssp:2", "local_sgd:4"]


def of_one() -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradient(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
    (loss := (model(x) - x.sum(1, keepdim=True)).square().mean()).backward()
    return loss


def test_alone_it_is_the_optimizer_and_steps_once():
    model, own = of_one()
    plain, plain_optimizer = of_one()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(plain_optimizer, 0.9)
    seen: list[tuple[str, float]] = []
    with plesio.join(model, own) as session:
        optimizer = session.optimizer
        ours = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        optimizer.register_step_pre_hook(lambda *_: seen.append(("before", model.weight[0, 0].item())))
        optimizer.register_step_post_hook(lambda *_: seen.append(("after", model.weight[0, 0].item())))
        for step in range(3):
            result = optimizer.step(lambda step=step: gradient(model, step))
            assert result is not None
            assert model.weight.grad is None
            gradient(plain, step)
            plain_optimizer.step()
            plain_optimizer.zero_grad()
            assert torch.equal(model.weight, plain.weight)
            scheduler.step()
            ours.step()
        assert [name for name, _ in seen] == ["before", "after"] * 3
        assert all(before != after for (_, before), (_, after) in zip(seen[::2], seen[1::2], strict=True))
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.param_groups is own.param_groups
        assert optimizer.state is own.state
        assert optimizer.defaults["momentum"] == 0.9
        assert optimizer.param_groups[0]["lr"] == plain_optimizer.param_groups[0]["lr"]
        for key, value in optimizer.state_dict()["state"][0].items():
            assert torch.equal(value, plain_optimizer.state_dict()["state"][0][key])
        gradient(model, 9)
        optimizer.zero_grad()
        assert model.weight.grad is None
        assert session.clock == 3


def test_a_state_that_is_set_is_the_optimizers():
    model, own = of_one()
    with plesio.join(model, own) as session:
        for step in range(2):
            gradient(model, step)
            session.optimizer.step()
        session.optimizer.state = defaultdict(dict)
        assert own.state is session.optimizer.state
        assert not own.state


def test_the_scripts_own_step_is_still_refused():
    model, own = of_one()
    with plesio.join(model, own) as session:
        gradient(model, 0)
        with pytest.raises(TaskError, match=r"beside session.step"):
            own.step()
        session.optimizer.step()


def test_a_group_that_is_added_is_refused_at_the_next_step():
    model, own = of_one()
    with plesio.join(model, own) as session:
        session.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        gradient(model, 0)
        with pytest.raises(TaskError, match="held 2 parameters when this session began and holds 3"):
            session.optimizer.step()


def test_a_state_is_loaded_before_the_first_step_only():
    model, own = of_one()
    with plesio.join(model, own) as session:
        with pytest.raises(DataError, match="another optimizer"):
            session.optimizer.load_state_dict({"param_groups": [], "state": {}})
        session.optimizer.load_state_dict(own.state_dict())
        gradient(model, 0)
        session.optimizer.step()
        with pytest.raises(ConfigError, match="after step 1"):
            session.optimizer.load_state_dict(own.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_and_leaves_it_as_it_was(copied: Callable[[Any], Any]):
    model, own = of_one()
    seen: list[int] = []
    with plesio.join(model, own) as session:
        session.optimizer.register_step_pre_hook(lambda *_: seen.append(1))
        with pytest.raises(ConfigError, match="take its state_dict"):
            copied(session.optimizer)
        gradient(model, 0)
        session.optimizer.step()
    assert seen == [1]


def test_a_scheduler_of_it_can_be_given_to_the_session():
    model, own = of_one()
    with plesio.join(model, own) as session:
        session.schedule(torch.optim.lr_scheduler.ExponentialLR(session.optimizer, 0.5))
        gradient(model, 0)
        session.optimizer.step()
    assert own.param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "bsp,exchange=store"])
def test_it_trains_as_the_session_does(policy: str):
    found: dict[str, Any] = {
        by: on_processes(2, PROGRAM, "stepped", policy=policy, steps=9, by=by)
        for by in ("session", "optimizer", "closure")
    }
    for by in ("optimizer", "closure"):
        assert found[by][0]["clock"] == 9
        assert found[by][0]["samples"] == found["session"][0]["samples"] == 2 * 9 * 8
        assert found[by][0]["fallbacks"] == ()
        assert found[by][0]["model"] == found["session"][0]["model"]


def test_under_ssp_every_step_counts():
    first, _ = on_processes(2, PROGRAM, "stepped", policy="ssp:2", steps=9, by="closure")
    assert (first["clock"], first["samples"], first["fallbacks"]) == (9, 2 * 9 * 8, ())


@pytest.mark.parametrize(("policy", "freezes"), [("bsp", False), ("bsp", True), ("bsp,exchange=store", True)])
def test_several_step_in_turns_as_in_one_process(policy: str, freezes: bool):
    found = on_processes(2, PROGRAM, "in_turns", policy=policy, steps=6, freezes=freezes)
    network = PROGRAMS["model"]()
    optimizers = [torch.optim.SGD(network[0].parameters(), lr=0.05, momentum=0.9)]
    optimizers.append(torch.optim.SGD(network[2].parameters(), lr=0.1))
    for step in range(6):
        for optimizer in optimizers:
            (sum(PROGRAMS["loss_of"](network, step, rank) for rank in range(2)) / 2).backward()
            optimizer.step()
            network.zero_grad()
    assert found[0]["clock"] == 12
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(torch.tensor(found[0]["model"][name]), tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["bsp", "bsp,exchange=store"])
def test_a_second_session_goes_on_from_what_was_saved(policy: str):
    found = on_processes(2, PROGRAM, "resumed", policy=policy, steps=5)
    network = PROGRAMS["model"]()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for step in range(10):
        (sum(PROGRAMS["loss_of"](network, step, rank) for rank in range(2)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert found[0]["lr"] == 0.02
    assert found[0]["fallbacks"] == ()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(torch.tensor(found[0]["model"][name]), tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_have_the_shared_model_within_the_context(policy: str):
    found = on_processes(2, PROGRAM, "shared", policy=policy, steps=6)
    within = {value for one in found for value in one["within"]}
    assert len(within) == 1
    assert [one["after"] == one["before"] for one in found] == [True, True]
    if policy == "local_sgd:4":
        assert len({one["before"] for one in found}) == 2, "between two averagings replicas differ"
    assert all("worker's" not in line for one in found for line in one["fallbacks"])
