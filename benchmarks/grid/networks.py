"""The network that all schedules are measured with, cut at the same places: two parts a stage.

Stages are paced, or compute. A paced stage sleeps in its forward pass until a third of its time has passed since that
began, and in its backward pass until two thirds have: one for the gradient of its input, one for those of its weights.
Autograd calls the sleep where the gradient would be computed, so that schedules that do the gradients of weights apart
(zero bubble) do theirs apart as well. What the pass really computes is within its time; what a schedule does between
two passes is not.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

PARTS = 2
"""Parts a stage: interleaved and V-shaped schedules give a device two that are no neighbours."""
CLASSES = 4
_PASS_GAP_S = 1.5e-3
"""The gradient of weights that begins later than this after the end of another pass is a pass of its own."""


@dataclass(slots=True)
class Pace:
    """How long the passes of some parts take.

    Attributes:
        pass_s: Forward, gradient of the input, and gradient of the weights, of each.
        factor: So much longer.
        period: After so many micro-batches it is the same again.
    """

    pass_s: float
    slow: frozenset[int] = frozenset()
    factor: float = 1.0
    period: int = 1
    until_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a pass."""
        self.until_s = time.monotonic()

    def wait(self, kind: str) -> None:
        """Return when this part of the pass has taken its time."""
        number = self.counts[kind] = self.counts.get(kind, -1) + 1
        now_s = time.monotonic()
        if now_s > self.until_s + _PASS_GAP_S and kind == "weights":
            self.until_s = now_s
        self.until_s += self.pass_s * (self.factor if number % self.period in self.slow else 1.0)
        time.sleep(max(0.0, self.until_s - now_s))


class _Moment(torch.autograd.Function):
    """The identity, at which a pace begins or waits."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, pace: Pace, kind: str) -> Tensor:
        ctx.pace, ctx.kind = pace, kind
        return given.clone()  # zero-bubble schedules detach what stages hand on in place, which no view allows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.kind:
            ctx.pace.wait(ctx.kind)
        else:
            ctx.pace.begin()
        return gradient, None, None


class PacedPart(nn.Module):
    """Two linear layers whose passes take as long as ``pace`` says.

    Args:
        repeat: What is handed on is repeated so often, which makes messages larger and computes nothing.
        outputs: Width of what is handed on, before it is repeated.
    """

    def __init__(self, pace: Pace, *, width: int, repeat: int, outputs: int) -> None:
        super().__init__()
        self.pace, self.width, self.repeat = pace, width, repeat
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, given: Tensor) -> Tensor:
        """Return the tensor that is handed on."""
        self.pace.begin()
        hidden = _Moment.apply(self.enter(given[:, : self.width]), self.pace, "inputs")
        weight = _Moment.apply(self.leave.weight, self.pace, "weights")
        handed: Tensor = F.linear(torch.tanh(hidden), weight, self.leave.bias)
        self.pace.wait("forward")
        return _Moment.apply(handed.repeat(1, self.repeat), self.pace, "")


def computing_part(*, width: int, depth: int, outputs: int) -> nn.Module:
    """Linear layers whose passes take as long as they do."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth - 1)]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The network that is cut, and its number of stages.

    Attributes:
        stage_s: Forward and backward pass of a stage; 0 for stages that compute.
        message_bytes: Between two stages, of a paced network.
        depth: Layers of each part of a computing network.
        slow: By stage, micro-batches whose passes take ``factor`` times as long, modulo ``period``.
    """

    stages: int
    stage_s: float = 0.02
    message_bytes: int = 0
    width: int = 32
    depth: int = 1
    batch: int = 8
    slow: tuple[frozenset[int], ...] = ()
    factor: float = 1.0
    period: int = 1

    @property
    def repeat(self) -> int:
        """Repeats of the tensors that paced parts hand on."""
        return max(1, round(self.message_bytes / (self.batch * self.width * 4)))

    @property
    def handed_bytes(self) -> int:
        """Bytes of what paced parts really hand on."""
        return self.batch * self.width * self.repeat * 4

    def parts(self, *, per_stage: int, devices: Sequence[int], sleeping: bool = True) -> list[nn.Module]:
        """Make the network's parts, from the first one on.

        Args:
            per_stage: How many a device has; all of them together take the stage's time.
            devices: The device of each.
            sleeping: Whether paced parts take their time themselves; in the virtual world Plesio's pacer does that.
        """
        torch.manual_seed(0)
        last = len(devices) - 1
        if not self.stage_s:
            depth = self.depth * PARTS // per_stage
            return [
                computing_part(width=self.width, depth=depth, outputs=CLASSES if number == last else self.width)
                for number in range(len(devices))
            ]
        return [
            PacedPart(
                Pace(
                    self.stage_s / per_stage / 3 if sleeping else 0.0,
                    slow=self.slow[device] if self.slow else frozenset(),
                    factor=self.factor,
                    period=self.period,
                ),
                width=self.width,
                repeat=1 if number == last else self.repeat,
                outputs=CLASSES if number == last else self.width,
            )
            for number, device in enumerate(devices)
        ]

    def handed_on(self, *, last: bool) -> Tensor:
        """Return a tensor of the shape that a part hands on."""
        return torch.zeros(
            self.batch, CLASSES if last else self.width * (self.repeat if self.stage_s else 1), requires_grad=True
        )

    def batches(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` micro-batches of inputs and targets."""
        generator = torch.Generator().manual_seed(1)
        size = count * self.batch
        return torch.randn(size, self.width, generator=generator), torch.randint(
            0, CLASSES, (size,), generator=generator
        )


def optimizer(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.01, momentum=0.9)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target)


def take_precedence(*, paced: bool) -> None:
    """Have this process run when it is due, whatever else the machine does; where the system lets it.

    A paced process is a device's stand-in and computes little: all its threads get real-time priority. One that
    computes is preferred to others, in a session of its own, as Linux shares processors out among sessions first.
    """
    with contextlib.suppress(PermissionError):  # not root, or it leads a session already
        if paced:
            for thread in map(int, os.listdir("/proc/self/task")):
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(10))
        else:
            os.setsid()
            Path("/proc/self/autogroup").write_text("-20", encoding="ascii")
