"""The programs of workers whose policy goes by racks: alone as a script, or called by a test's job."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

import plesio

Racks = Literal["auto", "host"] | Sequence[int]


def train(
    *, policy: str, trace: str, racks: Racks = "auto", size: int = 8, num_steps: int = 16, until: str | None = None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Step on a layer of ``size`` x ``size`` numbers; returns the racks and the fallbacks of the result.

    With ``until``, steps go on until that file is there and as many steps have been made since.
    """
    model = torch.nn.Linear(size, size)
    session = plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy, trace=trace, racks=racks)
    steps_left = num_steps
    while steps_left > 0:
        model(torch.ones(2, size)).square().mean().backward()
        session.step()
        there = torch.tensor([until is None or Path(until).exists()], dtype=torch.int32)
        if until is not None:
            torch.distributed.all_reduce(there, op=torch.distributed.ReduceOp.MIN)  # all leave after the same step
        steps_left -= int(there)
    session.close()
    result = session.report()
    return result.racks, result.fallbacks


if __name__ == "__main__":
    torch.set_num_threads(1)
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    train(
        policy=options["policy"],
        trace=options["trace"],
        size=int(options["size"]),
        num_steps=int(options["num_steps"]),
        until=options.get("until"),
    )
