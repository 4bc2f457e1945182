"""Habits with models: what `join` is given, and what it makes equal."""

import copy
import io
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from runtime.habits.plain import Made, as_plain_torch, of_sgd
from runtime.habits.table import BATCH_SIZE, Facts, Kind, Numbered, Script, habit, net, numbers, sgd_net

PART = "Models"


def _equal(facts: Sequence[Facts], script: Script) -> None:
    assert all(one["state"] == facts[0]["state"] for one in facts)


def trained(script: Script, model: nn.Module, optimizer: torch.optim.Optimizer) -> Facts:
    session = script.join(model, optimizer)
    seen = script.train(session, model, DataLoader(Numbered(), batch_size=BATCH_SIZE))
    session.close()
    return {"seen": seen, "state": numbers(model)}


@habit("frozen layers that differ between workers to begin with", part=PART, check=_equal)
def frozen(script: Script) -> Facts:
    model = net(script.rank)
    model[0].requires_grad_(False)
    trained(script, model, torch.optim.SGD(model[2].parameters(), lr=0.05))
    return {"state": numbers(model[0])}


class Counted(nn.Module):
    """Has an integer buffer, and a constant one, that differ between workers to begin with."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("table", torch.arange(4) + 10 * rank)
        self.register_buffer("mask", torch.tensor([True, rank == 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@habit("integer and boolean buffers that differ to begin with", part=PART, check=_equal)
def buffers(script: Script) -> Facts:
    model = Counted(script.rank)
    trained(script, model, torch.optim.SGD(model.parameters(), lr=0.05))
    return {"state": [*model.table.tolist(), *model.mask.tolist()]}


def normed(rank: int = 0) -> Made:
    torch.manual_seed(100 + rank)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return model, [torch.optim.SGD(model.parameters(), lr=0.05)]


@habit("BatchNorm", part=PART, check=as_plain_torch(normed))
def batch_norm(script: Script) -> Facts:
    model, optimizers = normed(script.rank)
    return trained(script, model, optimizers[0])


IN_MIDRUN: dict[str, Kind] = {"bsp": "honoured", "local_sgd:4": "warned", "asp": "warned", "adaptive": "honoured"}
"""States that are kept in mid-run: one worker's where replicas differ between steps."""


@habit(
    "copies in mid-run: `copy.deepcopy(model)`, `torch.save(model, ...)`, `AveragedModel(model)`",
    part=PART,
    kind=IN_MIDRUN,
)
def copies(script: Script) -> Facts:
    model, optimizers = normed(script.rank)
    session = script.join(model, optimizers[0])

    def copy_it() -> None:
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copied = (copy.deepcopy(model), torch.load(saved, weights_only=False), AveragedModel(model).module)
        x = torch.ones(2, 3)
        for one in copied:
            assert [p.tolist() for p in one.parameters()] == [p.tolist() for p in model.parameters()]
            assert one.eval()(x).tolist() == copy.deepcopy(model).eval()(x).tolist()

    script.train(session, model, DataLoader(Numbered(), batch_size=BATCH_SIZE), after=copy_it)
    return {}


@habit(
    "`model.state_dict()` after every step",
    part=PART,
    kind=IN_MIDRUN,
)
def state_in_midrun(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    script.train(session, model, DataLoader(Numbered(), batch_size=BATCH_SIZE), after=lambda: model.state_dict())
    return {}


@habit("validation by hand: `model.eval()` and `torch.no_grad()`, after every step", part=PART, kind=IN_MIDRUN)
def validated_by_hand(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)

    def validate() -> None:
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
        model.train()

    script.train(session, model, DataLoader(Numbered(), batch_size=BATCH_SIZE), after=validate)
    return {}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight
        self.last = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.decode(torch.tanh(self.encode(x))))


@habit("tied weights", part=PART)
def tied(script: Script) -> Facts:
    model = Tied()
    trained(script, model, torch.optim.SGD(model.parameters(), lr=0.05))
    assert model.decode.weight is model.encode.weight
    return {}


@habit("gradients that are there when the session begins", part=PART, kind="refused")
def gradients_before(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    model(torch.ones(2, 3)).sum().backward()
    trained(script, model, optimizer)
    return {}


@habit("another learning rate on each worker", part=PART, kind="refused")
def other_rates(script: Script) -> Facts:
    model = net(script.rank)
    trained(script, model, torch.optim.SGD(model.parameters(), lr=0.05 + 0.01 * script.rank))
    return {}


@habit("another optimizer on each worker", part=PART, kind="refused")
def other_optimizers(script: Script) -> Facts:
    model = net(script.rank)
    made = [torch.optim.SGD, torch.optim.AdamW][script.rank]
    trained(script, model, made(model.parameters(), lr=0.05))
    return {}


@habit("`LazyLinear` before its first batch", part=PART, kind="refused", alone="refused")
def lazy(script: Script) -> Facts:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    trained(script, model, torch.optim.SGD(model.parameters(), lr=0.05))
    return {}


@habit("parameters on the `meta` device", part=PART, kind="refused", alone="refused")
def meta(script: Script) -> Facts:
    model = nn.Linear(3, 1, device="meta")
    trained(script, model, torch.optim.SGD(model.parameters(), lr=0.05))
    return {}


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@habit("a model in `DistributedDataParallel`", part=PART, kind="refused", alone="refused")
def in_ddp(script: Script) -> Facts:
    import torch.distributed as dist  # one worker's own group

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, _ = sgd_net(script)
        wrapped = nn.parallel.DistributedDataParallel(model)
        trained(script, wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05))
    finally:
        dist.destroy_process_group()
    return {}


@habit("`torch.compile`", part=PART, check=as_plain_torch(of_sgd))
def compiled(script: Script) -> Facts:
    model = torch.compile(net(script.rank), backend="eager")
    return trained(script, model, torch.optim.SGD(model.parameters(), lr=0.05))


@habit("a parameter that the optimizer does not have", part=PART, kind="warned", alone="warned")
def forgotten(script: Script) -> Facts:
    model = net(script.rank)
    trained(script, model, torch.optim.SGD(model[2].parameters(), lr=0.05))
    return {}


@habit("parameters in the optimizer that the model does not have", part=PART, kind="refused")
def foreign(script: Script) -> Facts:
    model = net(script.rank)
    margin = nn.Parameter(torch.ones(1))
    trained(script, model, torch.optim.SGD([*model.parameters(), margin], lr=0.05))
    return {}


def _held_still(facts: Sequence[Facts], script: Script) -> None:
    if script.policy == "asp" and not script.alone:
        return  # told of: another worker's last update of the layer may come after this one has frozen it
    frozen_at = torch.tensor([one["before"] for one in facts]).mean(0).tolist()  # the averaging that was under way
    assert all(one["after"] == pytest.approx(frozen_at, rel=1e-6) for one in facts)


@habit(
    "a layer that is frozen in the middle of the run",
    part=PART,
    check=_held_still,
    kind={"bsp": "refused", "local_sgd:4": "honoured", "asp": "warned", "adaptive": "refused"},
)
def frozen_later(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    loader = DataLoader(Numbered(), batch_size=BATCH_SIZE)
    script.train(session, model, loader)
    session.evaluate(lambda: 0.0)
    model[0].requires_grad_(False)
    before = numbers(model[0])
    seen = script.train(session, model, loader)
    return {"before": before, "after": numbers(model[0]), "seen": seen}


@habit("a model that is converted (`.to(torch.float64)`) after `join`", part=PART, kind="refused", alone="refused")
def converted(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    model.to(torch.float64)
    for _, x, y in session.shard(DataLoader(Numbered(), batch_size=BATCH_SIZE)):
        script.at = "step"
        nn.functional.mse_loss(model(x.double()), y.double()).backward()
        session.step()
    return {}


def _spared(facts: Sequence[Facts], script: Script) -> None:
    assert all(one["spare"] == facts[0]["begun"] for one in facts)


class Spare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(3, 1), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@habit("a layer that no step uses, under weight decay", part=PART, check=_spared)
def unused(script: Script) -> Facts:
    torch.manual_seed(0)
    model = Spare()
    begun = numbers(model.spare)
    trained(script, model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))
    return {"begun": begun, "spare": numbers(model.spare)}
