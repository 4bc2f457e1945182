"""Habits with optimizers: schedules, several of them, and what stands after the step."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from runtime.habits.plain import Made, as_plain_torch
from runtime.habits.table import BATCH_SIZE, Facts, Kind, Numbered, Script, habit, loss_of, net, numbers, sgd_net

PART = "Optimizers and schedules"
EPOCHS = 2


def loader() -> DataLoader[object]:
    return DataLoader(Numbered(), batch_size=BATCH_SIZE)


def _ends_at_zero(facts: Sequence[Facts], script: Script) -> None:
    assert facts[0]["rate"] < 1e-9


@habit("a cosine to the end of the run, by `session.schedule`", part=PART, check=_ends_at_zero)
def cosine(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    steps = EPOCHS * session.steps_per_epoch(loader())
    session.schedule(CosineAnnealingLR(optimizer, T_max=steps))
    for _ in range(EPOCHS):
        script.train(session, model, loader())
    session.close()
    return {"rate": optimizer.param_groups[0]["lr"]}


def _ends_low(facts: Sequence[Facts], script: Script) -> None:
    assert all(abs(one["rate"] - 0.1 / 25 / 1e4) < 1e-12 for one in facts)  # by torch's factors


@habit("`OneCycleLR`, which may not be stepped too often", part=PART, check=_ends_low)
def one_cycle(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    steps = EPOCHS * session.steps_per_epoch(loader())
    session.schedule(OneCycleLR(optimizer, max_lr=0.1, total_steps=steps + 1))
    for _ in range(EPOCHS):
        script.train(session, model, loader())
    session.close()
    return {"rate": optimizer.param_groups[0]["lr"]}


@habit("`ReduceLROnPlateau` given to `session.schedule`", part=PART, kind="refused", alone="refused")
def plateau(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    script.at = "schedule"
    session.schedule(ReduceLROnPlateau(optimizer))
    return {}


def _by_one_metric(facts: Sequence[Facts], script: Script) -> None:
    assert all(one["found"] == facts[0]["found"] and one["rates"] == facts[0]["rates"] for one in facts)
    assert facts[0]["rates"][-1] < 0.05, "no plateau was met"


@habit("`ReduceLROnPlateau`, stepped with `session.evaluate(..., everywhere=True)`", part=PART, check=_by_one_metric)
def plateau_of_all(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    session.register(scheduler=scheduler)
    facts: Facts = {"found": [], "rates": []}
    for _ in range(EPOCHS + 1):
        script.train(session, model, loader())
        found = session.evaluate(lambda: loss_of(model), goal="min", everywhere=True)
        scheduler.step(found)
        facts["found"].append(found)
        facts["rates"].append(optimizer.param_groups[0]["lr"])
    return facts


FROM_STEPS: dict[str, Callable[[torch.optim.Optimizer, int], LRScheduler]] = {
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, T_max=steps),
    "one cycle": lambda optimizer, steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=steps + 1),
    "lambda": lambda optimizer, steps: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps)),
}


def _stepped_by_hand(script: Script, make: Callable[..., LRScheduler], *, asks: bool = False) -> bool:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    steps = EPOCHS * (len(session.shard(loader())) if asks else len(loader()))
    scheduler = make(optimizer, steps)
    len(session.shard(loader()))  # as a progress bar does
    for _ in range(EPOCHS):
        script.train(session, model, loader(), after=scheduler.step)
    session.close()
    return any("once a step" in line for line in session.report().fallbacks)


def _all_told(facts: Sequence[Facts], script: Script) -> None:
    assert script.alone or all(any(told) for told in zip(*(one["told"] for one in facts), strict=True))


@habit(
    "`scheduler.step()` after every step, reckoned by `len(loader)`: a cosine, `OneCycleLR`, `LambdaLR`",
    part=PART,
    check=_all_told,
    kind="warned",
)
def by_hand(script: Script) -> Facts:
    return {"told": [_stepped_by_hand(script, make) for make in FROM_STEPS.values()]}


def _told(facts: Sequence[Facts], script: Script) -> None:
    assert script.alone or any(one["told"] for one in facts)


@habit("another optimizer of the same parameters for a second phase", part=PART, kind="warned", alone="warned")
def second_phase(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    script.train(session, model, loader())
    second = torch.optim.SGD(model.parameters(), lr=0.005)
    script.train(session, model, loader())
    return {"rate": second.param_groups[0]["lr"]}


@habit("a rate that the script sets at every step, reckoned by `len(loader)`", part=PART, check=_told, kind="warned")
def rate_by_hand(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    number, steps = 0, EPOCHS * len(loader())

    def anneal() -> None:
        nonlocal number
        number += 1
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - number / steps)

    for _ in range(EPOCHS):
        script.train(session, model, loader(), after=anneal)
    session.close()
    return {"told": any("another learning rate at each step" in line for line in session.report().fallbacks)}


@habit(
    "`scheduler.step()` after every step, reckoned by `len(session.shard(loader))`, or at a constant rate", part=PART
)
def by_hand_of_shards(script: Script) -> Facts:
    _stepped_by_hand(script, FROM_STEPS["cosine"], asks=True)
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    scheduler = LambdaLR(optimizer, lambda _: 1.0)
    script.train(session, model, loader(), after=scheduler.step)
    return {}


def _two_epochs(facts: Sequence[Facts], script: Script) -> None:
    assert all(abs(one["rate"] - 0.05 * 0.5**EPOCHS) < 1e-12 for one in facts)


@habit("a scheduler that is stepped once an epoch", part=PART, check=_two_epochs)
def per_epoch(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(EPOCHS):
        script.train(session, model, loader())
        scheduler.step()
    return {"rate": optimizer.param_groups[0]["lr"]}


def _clamped(facts: Sequence[Facts], script: Script) -> None:
    assert facts[0]["largest"] <= 0.1 + 1e-6


ON_WORKERS: dict[str, Kind] = {"bsp": "honoured", "local_sgd:4": "honoured", "asp": "refused", "adaptive": "honoured"}


@habit(
    "weights that are clamped after the step",
    part=PART,
    check=_clamped,
    kind={**ON_WORKERS, "local_sgd:4": "warned"},
)
def clamp(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)

    def clamp_all() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)

    script.train(session, model, loader(), after=clamp_all)
    session.close()
    return {"largest": max(float(p.detach().abs().max()) for p in model.parameters())}


def _hooked(facts: Sequence[Facts], script: Script) -> None:
    assert all(one["calls"] > 0 for one in facts)


@habit("`register_step_post_hook` on the optimizer", part=PART, check=_hooked)
def step_hook(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    session = script.join(model, optimizer)
    script.train(session, model, loader())
    session.close()
    return {"calls": len(calls)}


def _has_moments(facts: Sequence[Facts], script: Script) -> None:
    assert facts[0]["num"] == 4


@habit("`optimizer.state_dict()` when the session is closed", part=PART, check=_has_moments)
def optimizer_state(script: Script) -> Facts:
    model = net(script.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = script.join(model, optimizer)
    script.train(session, model, loader())
    session.close()
    return {"num": len(optimizer.state_dict()["state"])}


def of_two(rank: int = 0) -> Made:
    model = net(rank)
    return model, [torch.optim.AdamW(model[0].parameters(), lr=0.01), torch.optim.SGD(model[2].parameters(), lr=0.05)]


@habit("two optimizers for one model", part=PART, check=as_plain_torch(of_two))
def two_optimizers(script: Script) -> Facts:
    model, optimizers = of_two(script.rank)
    session = script.join(model, optimizers)
    seen = script.train(session, model, loader())
    session.close()
    return {"seen": seen, "state": numbers(model)}


class Mine(torch.optim.SGD):
    """Steps by the sign of the gradient."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())


@habit(
    "a subclass of torch's SGD with a step of its own",
    part=PART,
    kind=ON_WORKERS,
)
def own_step(script: Script) -> Facts:
    model = net(script.rank)
    session = script.join(model, Mine(model.parameters(), lr=0.01))
    script.train(session, model, loader())
    return {}


@habit("two sessions at a time (a GAN)", part=PART, kind="refused")
def two_sessions(script: Script) -> Facts:
    made = [sgd_net(script) for _ in range(2)]
    sessions = [script.join(*one) for one in made]
    for _, x, y in sessions[0].shard(loader()):
        for (model, _), session in zip(made, sessions, strict=True):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            session.step(loss)
    return {}


@habit("`LBFGS`, whose step evaluates the loss itself", part=PART, kind="refused", alone="refused")
def lbfgs(script: Script) -> Facts:
    model = net(script.rank)
    session = script.join(model, torch.optim.LBFGS(model.parameters()))
    script.train(session, model, loader())
    return {}
