"""A script's use of its optimizer and parameters after a step, where the store's servers step."""

import pickle
import re
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ExchangeError, TaskError
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

STEPS = 9
SERVED = ["asp", "ssp:2", "bsp,exchange=store", "asp,period=2"]
LIMIT = 0.02
UNDONE = [
    "delayed:1",
    "bsp,compress=topk:0.5",
    "local_sgd:2,compress=topk:0.5",
    "local_sgd:2,inner_rate=0.5,momentum=0.4",
    "local_sgd:2,moments=mean",
]
"""Policies on collectives that make something else of what the script writes."""
ONE_HOST = Cluster.one_host(2)
SLOW = Cluster(
    name="slow", hosts=2, workers_per_host=1, cores_per_host=1, nic=Link(latency_s=0.2, bytes_per_s=1e6, shared=True)
)

Optimizer = torch.optim.Optimizer
Act = Callable[[nn.Module, Optimizer, int], Any]


def keep(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Touch nothing."""


def clamp(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """By way of `data`, which leaves no trace."""
    for parameter in model.parameters():
        parameter.data.clamp_(-LIMIT, LIMIT)


def shrink_late(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """In place, from a step on after which no copy is kept by itself."""
    if step >= 4:
        with torch.no_grad():
            next(model.parameters()).div_(2)


def shrink_once(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 4:
        shrink_late(model, optimizer, step)


def swap(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            own = parameter.clone()
            parameter.zero_()
            parameter.copy_(own)


class Averages:
    """Averaged weights that are swapped in for an evaluation after each `every` steps."""

    def __init__(self, *, data: bool, within: bool = False, every: int = 3) -> None:
        self.data, self.within, self.every = data, within, every

    def __call__(self, model: nn.Module, session: plesio.Session, step: int) -> None:
        if (step + 1) % self.every:
            return
        if self.within:
            session.evaluate(lambda: self.found(model))
            return
        own = [parameter.detach().clone() for parameter in model.parameters()]
        self.write(model, [parameter / 2 for parameter in own])
        session.evaluate(lambda: float(model.weight.sum()))
        self.write(model, own)

    def found(self, model: nn.Module) -> float:
        own = [parameter.detach().clone() for parameter in model.parameters()]
        self.write(model, [parameter / 2 for parameter in own])
        value = float(model.weight.sum())
        self.write(model, own)
        return value

    def write(self, model: nn.Module, values: list[torch.Tensor]) -> None:
        for parameter, value in zip(model.parameters(), values, strict=True):
            (parameter.data if self.data else parameter.detach()).copy_(value)


def reload(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        optimizer.load_state_dict(optimizer.state_dict())


def empty(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        optimizer.state.clear()


def forget(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        optimizer.state.pop(next(model.parameters()), None)


def renew(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        optimizer.state = defaultdict(dict)


def assign(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        for parameter in model.parameters():
            optimizer.state[parameter] = {}


def zero(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        optimizer.state_dict()
        zero_all(model, optimizer, step)


def zero_all(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        for state in optimizer.state.values():
            state["exp_avg"].zero_()


def zero_each(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 2:
        for parameter in model.parameters():
            if "exp_avg" in optimizer.state[parameter]:
                optimizer.state[parameter]["exp_avg"].zero_()


def copied(model: nn.Module, optimizer: Optimizer, step: int) -> list[type] | None:
    copies = (optimizer.state.copy(), deepcopy(optimizer).state, pickle.loads(pickle.dumps(optimizer.state)))
    return [type(copy) for copy in copies]


def ask(model: nn.Module, optimizer: Optimizer, step: int) -> dict[str, Any] | None:
    return optimizer.state_dict() if step == 5 else None


@dataclass(frozen=True)
class Script:
    """A user's loop, which does something after every step."""

    policy: str
    after: Act = keep
    averages: Averages | None = None
    hooked: bool = False
    hook: Act | None = None
    optimizer: Callable[..., Optimizer] = torch.optim.Adam
    steps: int = STEPS

    def __call__(self, job: VirtualJob) -> dict[str, Any]:
        torch.manual_seed(job.place.rank)
        model, calls, told = nn.Linear(4, 1), [], []
        optimizer = self.optimizer(model.parameters(), lr=0.05)
        started = model.weight.detach().clone()

        def before(*_: Any) -> None:
            calls.append("before")
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)

        if self.hook is not None:
            optimizer.register_step_post_hook(lambda *_: self.hook(model, optimizer, 0))
        if self.hooked:
            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        with plesio.join(model, optimizer, policy=self.policy) as session:
            started = model.weight.detach().clone()
            for step in range(self.steps):
                x = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + session.rank))
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                loss.backward()
                session.step(loss)
                told.append(self.after(model, optimizer, step))
                if self.averages is not None:
                    self.averages(model, session, step)
        report = session.report()
        return {
            "moved": not torch.equal(started, model.weight),
            "largest": max(float(p.detach().abs().max()) for p in model.parameters()),
            "state": optimizer.state_dict()["state"],
            "state_type": type(optimizer.state),
            "told": next(filter(None, told), None),
            "calls": calls,
            "fallbacks": report.fallbacks,
            "policies": [decision["policy"] for decision in report.decisions],
        }


def run(script: Script, cluster: Cluster = ONE_HOST) -> list[dict[str, Any]]:
    return [value for value in simulate(script, num_workers=2, cluster=cluster).values() if value]


def fused(parameters: Any, lr: float) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


@pytest.mark.parametrize("policy", [*UNDONE, "asp"])
def test_steps_of_a_fused_optimizer_are_the_sessions(policy: str):
    found = run(Script(policy, optimizer=fused))
    assert found[0]["moved"]
    assert found[0]["fallbacks"] == ()


@pytest.mark.parametrize("act", [clamp, shrink_late, reload, empty, forget, renew, assign, zero])
@pytest.mark.parametrize("policy", SERVED)
def test_what_the_servers_would_never_see_is_refused(policy: str, act: Act):
    what = "weight" if act in (clamp, shrink_late) else "the optimizer's state"
    with pytest.raises(TaskError, match=rf"changed \"?{what}\"? outside of session.step.*under {policy} the servers"):
        run(Script(policy, act))


@pytest.mark.parametrize("act", [zero_all, zero_each])
def test_a_script_that_looks_at_a_state_which_the_servers_have_is_told(act: Act):
    [line] = run(Script("asp", act))[0]["fallbacks"]
    assert line.startswith("under asp the servers have the optimizer's state, and what the script looked at")
    assert run(Script("local_sgd:3", act))[0]["fallbacks"] == ()


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("policy", [*SERVED, "diloco:3"])
def test_weights_swapped_in_for_an_evaluation_of_others_are_refused(policy: str, data: bool):
    for every in (3, 4):  # without a copy of step 3, and with one of step 4
        with pytest.raises(TaskError, match=f"around session.evaluate, which under {policy} has the shared ones"):
            run(Script(policy, averages=Averages(data=data, every=every)))
    found = run(Script(policy, averages=Averages(data=data, within=True)))
    assert found[0]["fallbacks"] == ()


@pytest.mark.parametrize("policy", ["asp", "asp,update=delta"])
def test_weights_swapped_in_for_the_last_evaluation_are_told(policy: str):
    found = run(Script(policy, averages=Averages(data=True, every=STEPS)))
    assert sum("around session.evaluate" in line for one in found for line in one["fallbacks"]) > 0


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2"])
def test_weights_swapped_in_where_models_are_evaluated_are_taken(policy: str):
    assert run(Script(policy, averages=Averages(data=True)))[0]["fallbacks"] == ()


@pytest.mark.parametrize("policy", SERVED)
def test_copies_of_the_optimizers_state_and_what_a_session_leaves_are_plain(policy: str):
    found = run(Script(policy, copied))[0]
    assert found["told"] == [defaultdict] * 3
    assert found["state_type"] is defaultdict
    assert found["fallbacks"] == ()


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:3", "asp,update=delta"])
def test_where_workers_step_an_optimizer_is_reset(policy: str):
    for one in run(Script(policy, empty)):
        assert [float(state["step"]) for state in one["state"].values()] == [STEPS - 3] * 2
        assert one["fallbacks"] == ()


@pytest.mark.parametrize("policy", SERVED)
def test_what_is_put_back_as_it_was_is_not_refused(policy: str):
    found = run(Script(policy, swap))
    assert found[0]["moved"]
    assert found[0]["fallbacks"] == ()


def test_a_write_that_nobody_can_judge_is_told():
    found = run(Script("asp", shrink_once))
    assert any("wrote to parameters outside of session.step()" in line for line in found[0]["fallbacks"])


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:3", "adaptive"])
def test_where_workers_step_a_clamp_holds(policy: str):
    for one in run(Script(policy, clamp)):
        assert one["moved"]
        assert one["largest"] <= LIMIT
        assert one["fallbacks"] == ()


@pytest.mark.parametrize("policy", UNDONE)
def test_what_a_policy_would_count_again_or_step_upon_is_refused(policy: str):
    with pytest.raises(TaskError, match=rf'changed "weight" outside of session.step.*but under {re.escape(policy)} '):
        run(Script(policy, clamp))
    assert run(Script(policy, swap))[0]["moved"]


@pytest.mark.parametrize("policy", [*SERVED, "local_sgd:2,inner_rate=0.5,momentum=0.4", "local_sgd:2,moments=mean"])
def test_what_a_hook_writes_is_refused_where_something_else_follows_it(policy: str):
    with pytest.raises(TaskError, match=r'changed "weight" outside of session.step'):
        run(Script(policy, hook=clamp))
    assert run(Script(policy, hook=swap))[0]["fallbacks"] == ()


@pytest.mark.parametrize("policy", ["bsp", "delayed:1", "bsp,compress=topk:0.5"])
def test_what_a_hook_writes_holds_where_nothing_follows_it(policy: str):
    found = run(Script(policy, hook=clamp))[0]
    assert found["largest"] <= LIMIT
    assert found["fallbacks"] == ()


def normalise(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    for parameter in model.parameters():
        parameter.data.div_(parameter.data.norm())


@pytest.mark.parametrize("policy", ["local_sgd:4", "local_sgd:4,delay=2", "local_sgd:4,exchange=store"])
def test_what_the_last_exchange_changes_is_told(policy: str):
    lines = run(Script(policy, normalise))[0]["fallbacks"]
    assert any(f"the last exchange of {policy} came after what the script wrote" in line for line in lines)
    assert run(Script(policy, swap))[0]["fallbacks"] == ()


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_adaptive_goes_to_no_policy_that_counts_a_clamp_twice(optimizer: Callable[..., Optimizer]):
    policy = "adaptive"
    tried = run(Script(policy, optimizer=optimizer, steps=150), SLOW)[0]["policies"]
    assert any("inner_rate" in policy or "moments" in policy for policy in tried)
    found = run(Script(policy, clamp, optimizer=optimizer, steps=150), SLOW)
    assert len(set(found[0]["policies"])) > 1
    assert not any("inner_rate" in policy or "moments" in policy for policy in found[0]["policies"])
    assert all(one["largest"] <= LIMIT + 1e-8 for one in found)


def test_with_deltas_a_clamp_is_a_part_of_the_next_one_and_the_end_is_told():
    found = run(Script("asp,update=delta", clamp))
    assert any("came after what the script wrote" in line for line in found[0]["fallbacks"])
    assert run(Script("asp,update=delta"))[0]["fallbacks"] == ()


@pytest.mark.parametrize("policy", SERVED)
def test_step_hooks_run_once_a_step_and_what_they_make_of_gradients_is_pushed(policy: str):
    for one in run(Script(policy, hooked=True)):
        assert one["calls"] == ["before", "after"] * STEPS
        assert not one["moved"], "gradients were set to zero"


@pytest.mark.parametrize("policy", SERVED)
def test_state_dict_of_the_optimizer_is_the_servers(policy: str):
    found = run(Script(policy, ask))
    for one in found:
        assert set(one["told"]["state"]) == {0, 1}
        assert all(state["exp_avg_sq"].sum() > 0 for state in one["told"]["state"].values())
    last = found[0]["state"]
    assert all(float(state["step"]) > float(found[0]["told"]["state"][key]["step"]) for key, state in last.items())


class Doubled(torch.optim.SGD):
    """A class of one's own, with torch's name or not."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        return super().step(closure)


def patched(parameters: Any, lr: float) -> Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=lr)
    own = optimizer.step
    optimizer.step = lambda *_: own()  # type: ignore[method-assign, assignment]
    return optimizer


def scheduled(parameters: Any, lr: float) -> Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=lr)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (Doubled, "Doubled"),
        (type("SGD", (Doubled,), {}), "SGD"),
        (patched, "SGD with a step of its own"),
    ],
)
def test_servers_do_not_take_a_step_of_ones_own_for_torchs(optimizer: Callable[..., Optimizer], name: str):
    with pytest.raises(ExchangeError, match=f"cannot run {name} on gradients.*update=delta"):
        run(Script("asp", optimizer=optimizer))
    assert run(Script("asp,update=delta", optimizer=optimizer))[0]["moved"]


def test_a_scheduler_counts_steps_by_a_step_that_is_torchs():
    assert run(Script("asp", optimizer=scheduled))[0]["moved"]
