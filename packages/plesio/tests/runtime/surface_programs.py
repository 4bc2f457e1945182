"""Loops that step by ``session.optimizer``, as frameworks do; here, because worker processes import them by name."""

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import plesio

BATCH = 8


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x.sum(1, keepdim=True).sin()


def loss_of(network: nn.Module, step: int, rank: int) -> torch.Tensor:
    x, y = batch(step, rank)
    return (network(x) - y).square().mean()


def values(network: nn.Module) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in network.state_dict().items()}


def digest(network: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in network.parameters())).hexdigest()


def train(session: plesio.Session, network: nn.Module, steps: range) -> None:
    for step in steps:
        loss_of(network, step, session.rank).backward()
        session.optimizer.step()


def stepped(*, policy: str, steps: int, by: str) -> dict[str, Any]:
    """Step by ``session.step``, by the optimizer, or by the optimizer with a closure."""
    network = model()
    own = torch.optim.AdamW(network.parameters(), lr=0.02)
    with plesio.join(network, own, policy=policy) as session:
        optimizer = session.optimizer
        for step in range(steps):
            if by == "session":
                (loss := loss_of(network, step, session.rank)).backward()
                session.step(loss, samples=BATCH)
                continue
            optimizer.given(BATCH)
            if by == "optimizer":
                optimizer.zero_grad()
                loss_of(network, step, session.rank).backward()
                optimizer.step()
            else:

                def closure(step: int = step) -> torch.Tensor:
                    optimizer.zero_grad()
                    (loss := loss_of(network, step, session.rank)).backward()
                    return loss

                optimizer.step(closure)
    report = session.report()
    return {
        "model": values(network),
        "rank": session.rank,
        "clock": session.clock,
        "samples": report.samples,
        "fallbacks": report.fallbacks,
    }


def in_turns(*, policy: str, steps: int, freezes: bool) -> dict[str, Any]:
    """Step two optimizers one after the other; the second loss is of what the first step has made.

    With ``freezes`` only the layer whose optimizer steps requires gradients, as a GAN's loop has it.
    """
    network = model()
    first = torch.optim.SGD(network[0].parameters(), lr=0.05, momentum=0.9)
    second = torch.optim.SGD(network[2].parameters(), lr=0.1)
    with plesio.join(network, [first, second], policy=policy) as session:
        for step in range(steps):
            for optimizer, other in zip(session.optimizer, [network[2], network[0]], strict=True):
                other.requires_grad_(not freezes)
                loss_of(network, step, session.rank).backward()
                optimizer.step()
                other.requires_grad_(True)
                network.zero_grad()
        clock = session.clock
    return {"model": values(network), "clock": clock}


def resumed(*, policy: str, steps: int) -> dict[str, Any]:
    """Train in two sessions, the second of which loads what the first has saved."""
    network = model()
    own = torch.optim.Adam(network.parameters(), lr=0.02)
    with plesio.join(network, own, policy=policy) as session:
        train(session, network, range(steps))
        with session.shared:
            weights = {name: value.clone() for name, value in network.state_dict().items()}
        state = session.optimizer.state_dict()
    network = model()
    own = torch.optim.Adam(network.parameters(), lr=0.5)
    with plesio.join(network, own, policy=policy) as session:
        network.load_state_dict(weights)
        session.optimizer.load_state_dict(state)
        train(session, network, range(steps, 2 * steps))
        lines = session.report().fallbacks
    return {"model": values(network), "lr": own.param_groups[0]["lr"], "fallbacks": lines}


def shared(*, policy: str, steps: int) -> dict[str, Any]:
    """Look at the model in mid-run: within the context, within one in another, and after it."""
    dist.init_process_group("gloo")
    network = model()
    own = torch.optim.SGD(network.parameters(), lr=0.1)
    with plesio.join(network, own, policy=policy) as session:
        train(session, network, range(steps))
        before = digest(network)
        with session.shared:
            within = digest(network)
            with session.shared:
                again = digest(network)
            still = digest(network)
            with torch.no_grad():
                network.eval()
                network(batch(0, 0)[0])
                network.train()
            network.state_dict()
        after = digest(network)
        train(session, network, range(steps, steps + 1))
        lines = session.report().fallbacks
    dist.destroy_process_group()
    return {"before": before, "within": [within, again, still], "after": after, "fallbacks": lines}
