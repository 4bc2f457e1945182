"""`Session.state_dict` and `load_state_dict`: torch's own objects take them, and a run goes on from them."""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ConfigError, DataError
from plesio.cost.cluster import Cluster
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

STEPS = 6
EXACT = ["bsp", "bsp,exchange=store", "local_sgd:2", "local_sgd:3,momentum=0.5"]
RELAXED = ["asp", "ssp:2", "ssp:2,update=delta", "adaptive"]
OPTIMIZERS = ["adamw", "sgd"]


def objects(optimizer: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    if optimizer == "adamw":
        return model, torch.optim.AdamW(model.parameters(), lr=0.02)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Worker:
    """Trains ``begin`` to ``end`` on batches that are a function of rank and step; saves after `STEPS` of them."""

    policy: str
    optimizer: str
    begin: int = 0
    end: int = 2 * STEPS
    loaded: tuple[dict[str, Any], ...] = ()

    def __call__(self, job: VirtualJob) -> dict[str, Any]:
        model, optimizer = objects(self.optimizer)
        saved: dict[str, Any] = {}
        losses = []
        with plesio.join(model, optimizer, policy=self.policy) as session:
            if self.loaded:
                session.load_state_dict(self.loaded[session.rank])
                saved = session.state_dict()
            for step in range(self.begin, self.end):
                if step == STEPS and not self.loaded:
                    saved = session.state_dict()
                generator = torch.Generator().manual_seed(100 * step + session.rank)
                x = torch.randn(4, 5, generator=generator)
                loss = (model(x) - x.sum(1, keepdim=True).tanh()).square().mean()
                loss.backward()
                session.step(loss)
                losses.append(float(loss.detach()))
        return {"model": model.state_dict(), "saved": saved, "losses": losses}


def run(worker: Worker) -> list[dict[str, Any]]:
    return [value for value in simulate(worker, num_workers=2, cluster=Cluster.one_host(2)).values() if value]


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", EXACT)
def test_what_is_loaded_trains_on_as_what_was_saved_did(policy: str, optimizer: str) -> None:
    whole = run(Worker(policy, optimizer))
    saved = tuple(one["saved"] for one in whole)
    resumed = run(Worker(policy, optimizer, begin=STEPS, loaded=saved))
    if "momentum" not in policy:  # that momentum begins anew
        assert_equal(resumed[0]["model"], whole[0]["model"])
    for rank in (0, 1):
        assert_equal(resumed[rank]["saved"]["model"], saved[rank]["model"])
        assert_equal(resumed[rank]["saved"]["optimizer"], saved[rank]["optimizer"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", RELAXED)
def test_what_is_loaded_is_all_that_was_saved(policy: str, optimizer: str) -> None:
    whole = run(Worker(policy, optimizer))
    saved = whole[0]["saved"]
    assert len(saved["optimizer"]["state"]) == 4, "of each parameter"
    resumed = run(Worker(policy, optimizer, begin=STEPS, loaded=(saved, saved)))
    for rank in (0, 1):
        found = resumed[rank]["saved"]
        if rank == 0 or "delta" not in policy:
            assert_equal(found["model"], saved["model"])
        assert_equal(found["optimizer"], saved["optimizer"])
    # the other worker's update of the last step may have come between the saved state and what went on from it
    last = [sum(one["losses"][-3:]) / 3 for one in (*whole, *resumed)]
    assert max(last) < whole[0]["losses"][0], "it goes on learning"


@pytest.mark.parametrize("policy", ["asp", "bsp", "local_sgd:2"])
def test_torch_takes_it_without_plesio_and_reads_it_without_running_anything(policy: str) -> None:
    file = io.BytesIO()
    torch.save(run(Worker(policy, "adamw"))[0]["saved"], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, optimizer = objects("adamw")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert all(float(state["step"]) > 0 for state in optimizer.state.values())
    assert saved["plesio"] == {"schema": 1, "policy": policy, "clock": STEPS, "num_workers": 2, "optimizer": "AdamW"}
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()


def test_the_example_in_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[5] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(import torch\nimport plesio\n.*?)```", guide, flags=re.DOTALL)
    simulate(lambda job: exec(example, {}), num_workers=2, cluster=Cluster.one_host(2)).values()
    assert torch.load("mine.pt", weights_only=True)["plesio"]["policy"] == "asp"


def test_a_single_worker_can_do_it_too_and_a_rate_of_numpys_is_saved_as_a_number() -> None:
    numpy = pytest.importorskip("numpy")
    model, optimizer = objects("sgd")
    with plesio.join(model, optimizer, policy="bsp") as session:
        optimizer.param_groups[0]["lr"] = numpy.float64(0.25)
        model(torch.ones(1, 5)).sum().backward()
        session.step()
        state = session.state_dict()
        with pytest.raises(ConfigError, match="after step 1: call it before the first step"):
            session.load_state_dict(state)
    assert type(state["optimizer"]["param_groups"][0]["lr"]) is float
    other, second = objects("sgd")
    with plesio.join(other, second, policy="bsp") as session:
        session.load_state_dict(state)
        for bad, reason in (({}, "no state"), ({**state, "model": {}}, "another model or optimizer")):
            with pytest.raises(DataError, match=reason):
                session.load_state_dict(bad)
        assert_equal(dict(other.state_dict()), dict(state["model"]))
