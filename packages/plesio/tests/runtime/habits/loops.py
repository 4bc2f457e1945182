"""Habits with loops: what stands around `step`."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import DataLoader

from runtime.habits.plain import as_plain_torch, of_sgd
from runtime.habits.table import (
    BATCH_SIZE,
    NUM_SAMPLES,
    Facts,
    Numbered,
    Script,
    habit,
    loss_of,
    net,
    numbers,
    sgd_net,
)

PART = "Loops"


def loader() -> DataLoader[object]:
    return DataLoader(Numbered(), batch_size=BATCH_SIZE)


@habit("`optimizer.step()` beside `session.step()`", part=PART, kind="refused", alone="refused")
def stray_step(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        script.at = "step"
        optimizer.step()
        session.step(loss)
    return {}


@habit("`optimizer.step()` in a hook of the backward pass", part=PART, kind="refused", alone="refused")
def step_in_backward(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    session = script.join(model, optimizer)
    script.train(session, model, loader())
    return {}


@habit("a `GradScaler` that `join` was not given", part=PART, kind="warned", alone="warned")
def scaler_not_given(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        session.step(loss)
    return {}


@habit("gradients that are never finite", part=PART, kind="warned", alone="warned")
def never_finite(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        loss = F.mse_loss(model(x), y)
        (loss * torch.nan).backward()
        session.step(loss)
    return {}


@habit("a loop that never calls `session.step`", part=PART, kind="warned", alone="warned")
def no_step(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        F.mse_loss(model(x), y).backward()
    return {}


@habit("`optimizer.zero_grad()` at the top of the loop", part=PART)
def zero_grad_first(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        session.step(loss)
    return {}


@habit("gradient accumulation", part=PART, check=as_plain_torch(of_sgd, batches_per_step=2))
def accumulation(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    seen: list[int] = []
    number = 0
    for number, (index, x, y) in enumerate(session.shard(loader()), start=1):
        (F.mse_loss(model(x), y) / 2).backward()
        seen += index.tolist()
        if number % 2 == 0:
            session.step()
    if number % 2:
        session.step()
    session.close()
    return {"seen": seen, "state": numbers(model)}


@habit("gradient accumulation whose last batches no step follows", part=PART, kind="warned")
def accumulation_without_end(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        F.mse_loss(model(x), y).backward()
        if session.clock == 0:
            session.step()
    session.close()
    return {}


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def _clipped(facts: Sequence[Facts], script: Script) -> None:
    as_plain_torch(of_sgd, before_step=clip)(facts, script)
    begun = torch.tensor(numbers(of_sgd()[0]))
    num_steps = sum(len(one["seen"]) for one in facts) // BATCH_SIZE
    # learning rate by norm by steps; under collectives the workers' steps are one
    assert torch.dist(torch.tensor(facts[0]["state"]), begun) < 0.05 * 0.1 * num_steps + 1e-6


@habit("a batch that is left out with `continue`, on all workers alike", part=PART, kind="warned", alone="warned")
def left_out(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for number, (_, x, y) in enumerate(session.shard(loader())):
        if number % 2 == 0:
            continue
        loss = F.mse_loss(model(x), y)
        loss.backward()
        session.step(loss)
    return {}


@habit("`clip_grad_norm_` before the step", part=PART, check=_clipped)
def clipping(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    seen: list[int] = []
    for index, x, y in session.shard(loader()):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        clip(model)
        session.step(loss)
        seen += index.tolist()
    session.close()
    return {"seen": seen, "state": numbers(model)}


@habit("a loss that is a vector", part=PART, kind="refused", alone="refused")
def vector_loss(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in session.shard(loader()):
        loss = F.mse_loss(model(x), y, reduction="none")
        loss.mean().backward()
        script.at = "step"
        session.step(loss)
    return {}


def _own_samples(facts: Sequence[Facts], script: Script) -> None:
    assert facts[0]["samples"] == NUM_SAMPLES


@habit("a loader of one's own, with `step(loss, samples=n)`", part=PART, check=_own_samples)
def own_loader(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    data = torch.utils.data.Subset(Numbered(), range(script.rank, NUM_SAMPLES, script.num_workers))
    for _, x, y in DataLoader(data, batch_size=BATCH_SIZE):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        session.step(loss, samples=len(x))
    session.close()
    return {"samples": session.report().samples}


@habit("a loader of one's own that draws the same batches on all workers", part=PART, kind="warned")
def same_batches(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _, x, y in DataLoader(Numbered(), batch_size=BATCH_SIZE):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        session.step(loss, samples=len(x))
    return {}


@habit(
    "loaders of one's own of unequal lengths",
    part=PART,
    kind={"bsp": "warned", "local_sgd:4": "warned", "adaptive": "warned", "asp": "honoured"},
    apart=True,
)
def unequal_steps(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    data = torch.utils.data.Subset(Numbered(), range(script.rank, NUM_SAMPLES - 16 * script.rank, 2))
    for _, x, y in DataLoader(data, batch_size=BATCH_SIZE):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        session.step(loss, samples=len(x))
    return {}


def _frozen_mode(facts: Sequence[Facts], script: Script) -> None:
    assert all(one["modes"] == [True, False] for one in facts)


@habit("BatchNorm that stays in `.eval()` through an evaluation", part=PART, check=_frozen_mode)
def frozen_norm(script: Script) -> Facts:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[1].eval()
    session = script.join(model, torch.optim.SGD(model.parameters(), lr=0.05))
    script.train(session, model, loader())
    session.evaluate(lambda: 0.0)
    return {"modes": [model[0].training, model[1].training]}


def _stopped_together(facts: Sequence[Facts], script: Script) -> None:
    assert all(one["found"] == facts[0]["found"] for one in facts)
    assert 1 < len(facts[0]["found"]) < 8, "it stops, and not at once"


@habit("early stopping, by `session.evaluate(..., everywhere=True)`", part=PART, check=_stopped_together)
def early_stopping(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    found: list[float] = []
    for _ in range(8):
        script.train(session, model, loader())
        found.append(session.evaluate(lambda: loss_of(model), goal="min", everywhere=True))
        if len(found) > 1 and found[-1] > 0.7 * found[-2]:
            break
    return {"found": found}


@habit("a metric that is no number", part=PART, kind="refused", alone="refused")
def metric_of_words(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    script.train(session, model, loader())
    script.at = "evaluate"
    session.evaluate(lambda: "good")
    return {}


__all__ = ["net", "numbers"]
