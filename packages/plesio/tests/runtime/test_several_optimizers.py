"""A list of optimizers trains as one with as many groups does, under every policy; what none could do is refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ConfigError, ExchangeError, TaskError
from plesio.cost.cluster import Cluster
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

STEPS = 10
POLICIES = ["bsp", "local_sgd:3,momentum=0.5", "delayed:1", "fsdp", "asp", "asp,update=delta", "ssp:2,period=2"]
POLICIES += ["adaptive"]

Optimizer = torch.optim.Optimizer
Make = Callable[[nn.Sequential], Any]


def as_groups(model: nn.Sequential) -> Any:
    return torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.02, "momentum": 0.9}, {"params": model[2].parameters(), "lr": 0.05}],
        lr=0.1,
    )


def as_list(model: nn.Sequential) -> Any:
    first = torch.optim.SGD(model[0].parameters(), lr=0.02, momentum=0.9)
    return [first, torch.optim.SGD(model[2].parameters(), lr=0.05)]


def unlike(model: nn.Sequential) -> Any:
    return (
        torch.optim.AdamW(model[0].parameters(), lr=0.02),
        torch.optim.SGD(model[2].parameters(), lr=0.05, momentum=0.5),
    )


def with_muon(model: nn.Sequential) -> Any:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    return [torch.optim.AdamW(rest, lr=0.02), torch.optim.Muon(matrices, lr=0.02)]


@dataclass(frozen=True)
class Script:
    policy: str
    make: Make
    end: int = STEPS
    folder: Path | None = None
    scaled: bool = False
    load: bool = False

    def __call__(self, job: VirtualJob | None) -> dict[str, Any]:
        torch.manual_seed(0 if job is None else job.place.rank)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        given = self.make(model)
        parts = [given] if isinstance(given, Optimizer) else given
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in parts]
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if self.scaled else None
        kept = {} if self.folder is None else {"checkpoint": self.folder, "every": "3 steps"}
        with plesio.join(model, given, policy=self.policy, scaler=scaler, **kept) as session:
            session.register(**{f"schedule{number}": one for number, one in enumerate(schedulers)})
            for step in range(session.clock, self.end):
                x = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + session.rank))
                loss = (model(x) - x.sum(1, keepdim=True).tanh()).square().mean()
                (loss if scaler is None else scaler.scale(loss)).backward()
                session.step(loss)
                for scheduler in schedulers:
                    scheduler.step()
            whole = session.state_dict()
        return {"model": model.state_dict(), "whole": whole, "given": given}


def run(script: Script) -> list[dict[str, Any]]:
    return [value for value in simulate(script, num_workers=2, cluster=Cluster.one_host(2)).values() if value]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_list_trains_as_groups_of_one_do(policy: str):
    one, several = run(Script(policy, as_groups)), run(Script(policy, as_list))
    for name, tensor in one[0]["model"].items():
        assert torch.equal(several[0]["model"][name], tensor)
    states = several[0]["whole"]["optimizer"]
    assert [len(state["param_groups"]) for state in states] == [1, 1]
    merged = one[0]["whole"]["optimizer"]
    assert [state["param_groups"][0]["lr"] for state in states] == [group["lr"] for group in merged["param_groups"]]
    momentum = "momentum_buffer"
    for number in (0, 1):
        torch.testing.assert_close(states[0]["state"][number][momentum], merged["state"][number][momentum])


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2", "fsdp", "asp,update=delta", "adaptive"])
def test_optimizers_unlike_each_other_step_each_their_own(policy: str):
    for make in (unlike, with_muon):
        found = run(Script(policy, make))
        fresh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        for part, state in zip(make(fresh), found[0]["whole"]["optimizer"], strict=True):
            part.load_state_dict(state)
            assert len(part.state) == sum(len(group["params"]) for group in part.param_groups)


def test_servers_step_each_by_its_own_rule():
    alone, served = Script("bsp", unlike)(None), run(Script("bsp,exchange=store", unlike))
    together = run(Script("bsp", unlike))
    for name, tensor in together[0]["model"].items():
        torch.testing.assert_close(served[0]["model"][name], tensor, rtol=1e-5, atol=1e-6)
        assert not torch.equal(alone["model"][name], tensor)
    with pytest.raises(ExchangeError, match=r"cannot run Muon on gradients.*update=delta"):
        run(Script("asp", with_muon))


def test_a_scaler_unscales_the_gradients_of_all():
    plain, scaled = run(Script("bsp", with_muon)), run(Script("bsp", with_muon, scaled=True))
    for name, tensor in plain[0]["model"].items():
        torch.testing.assert_close(scaled[0]["model"][name], tensor)


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_checkpoint_has_the_states_of_all(policy: str, alone: bool, tmp_path: Path):
    make = unlike

    def trained(end: int, folder: Path | None) -> dict[str, Any]:
        script = Script(policy, make, end=end, folder=folder)
        return script(None) if alone else run(script)[0]

    trained(6, tmp_path)
    resumed, whole = trained(STEPS, tmp_path), trained(STEPS, None)
    if policy == "bsp":
        for name, tensor in whole["model"].items():
            assert torch.equal(resumed["model"][name], tensor)
    adamw, sgd = resumed["whole"]["optimizer"]
    assert {float(state["step"]) for state in adamw["state"].values()} == {float(STEPS)} or policy == "asp"
    assert len(adamw["state"]) == 2
    assert len(sgd["param_groups"]) == 1


MODEL = nn.Linear(2, 2)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (SGD, MODEL, "model is a SGD; write plesio.join(model, optimizer)"),
        (MODEL, None, "optimizer is None; write an optimizer of torch.optim, or a list of them"),
        (MODEL, [], "or a list of them, not an empty list"),
        (MODEL, [SGD, "adam"], "write an optimizer of torch.optim, or a list of them"),
        (MODEL, MODEL.parameters(), "write an optimizer of torch.optim, or a list of them"),
        (None, SGD, "model is None; write plesio.join(model, optimizer), a torch.nn.Module first"),
        ([MODEL], SGD, "write plesio.join(model, optimizer), a torch.nn.Module first"),
        (MODEL, [SGD, SGD], "has one of them twice, which would step twice"),
        (
            MODEL,
            [SGD, torch.optim.Adam([MODEL.bias])],
            "two optimizers, SGD and Adam, hold the same parameter, of shape (2,)",
        ),
    ],
)
def test_what_is_no_model_or_no_optimizer_is_refused_in_one_line(model: Any, optimizer: Any, message: str):
    with pytest.raises((ConfigError, TaskError), match=re.escape(message)):
        plesio.join(model, optimizer)
