"""``digits`` with a model of a million parameters, whose bytes weigh on 1 Gbit/s as they do in practice.

The catalogue's CNN has 38 thousand parameters. Spread over a server on each of 16 hosts that is 10 kB a message, and
handling a message then costs more than carrying it, which is not so with the models that people distribute.
"""

import dataclasses

import torch
from torch import nn

from plesio.tasks import Task
from plesio.tasks.digits import digits

WIDTH = 960


def wide_digits(*, learning_rate: float = 0.05) -> Task:
    """Make a task of the data, loss and metric of ``digits``, and a perceptron of 994,570 parameters (4.0 MB)."""

    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        del seed  # `Task` seeds torch before it calls
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10)
        )
        return model, torch.optim.SGD(model.parameters(), lr=learning_rate)

    return dataclasses.replace(digits(), name="wide_digits", build=build)
