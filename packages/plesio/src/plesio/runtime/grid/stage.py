"""One stage at work: its layers, its optimizer, and what it keeps of micro-batches between their two passes.

Which gradient a late backward pass takes is the setting's ``weights``:

- ``stash``: a micro-batch goes forward with a copy of the weights, and its backward pass differentiates that forward
  pass. The result is the gradient of the loss that was computed, at the stage's weights of then (the stages behind it
  have been at theirs). Copies of the weights are shared by micro-batches of one version; activations are kept.
- ``recompute``: only the input is kept. The backward pass goes forward again, with the present weights and the random
  numbers of then, and takes the gradient of what comes out, weighted by the output's gradient as it was sent back. It
  is neither the gradient of then nor of now: the stage's own part is of now, the stages behind it of then (the features
  replay of Huo et al. 2018). Buffers such as BatchNorm's statistics are moved by the first pass alone.

A stage whose delay is 0 goes backward at once, with the weights themselves; both are then the same, and exact.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plesio.core.errors import TaskError
from plesio.policies.grid import Backward, Forward, GridSetting, Update
from plesio.runtime.grid.weight_prediction import WeightPrediction

_MEAN_WITHIN = 0.02
"""Relative difference of a loss from the mean of its halves that rounding and ignored targets may make."""

_IN_PLACE = (
    "changes what it is given in place, which is kept for its backward pass; write inplace=False, or cut elsewhere"
)

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, target)``: the mean over a micro-batch, a scalar."""


@dataclass(slots=True)
class _Kept:
    """A micro-batch that has gone forward."""

    version: int
    inputs: list[Tensor]
    outputs: list[Tensor]
    """With their graph; empty where the backward pass goes forward again."""
    random_state: "RandomState | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Sizes of what a stage keeps between passes; activations inside its layers are counted with the worker's memory.

    Attributes:
        micro_batches: That have gone forward and not backward.
        inputs_bytes: Of their inputs and outputs.
        copies: Of the weights.
        copies_bytes: Of these.
    """

    micro_batches: int
    inputs_bytes: int
    copies: int
    copies_bytes: int


@dataclass(frozen=True, slots=True)
class RandomState:
    """State of torch's random numbers."""

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def of(cls, device: torch.device) -> "RandomState":
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)


@dataclass(slots=True)
class _MeanLoss:
    """A loss that is the mean over a micro-batch."""

    loss: Loss
    _: KW_ONLY
    unchecked: bool
    """True if it must be a mean, and has not been looked at yet."""

    def of(self, output: Any, target: Any) -> Tensor:
        loss = self.loss(output, target)
        if loss.numel() != 1:
            raise TaskError(
                "the loss of a grid is a scalar, the mean over a micro-batch; it is called as loss(output, y)"
            )
        if self.unchecked:
            self.unchecked = False
            self._check_mean(float(loss.detach()), output, target)
        return loss.reshape(())

    @torch.no_grad()
    def _check_mean(self, whole: float, output: Any, target: Any) -> None:
        """Refuse a loss that is not the mean: a step's samples are spread over groups and micro-batches."""
        if not isinstance(output, Tensor) or not isinstance(target, Tensor) or len(output) != len(target):
            return
        half = len(output) // 2
        if half == 0:
            return
        even = float(self.loss(output[: 2 * half], target[: 2 * half]))
        of_halves = [float(self.loss(output[part], target[part])) for part in (slice(half), slice(half, 2 * half))]
        if abs(sum(of_halves) / 2 - even) > _MEAN_WITHIN * max(abs(even), abs(whole), 1e-6):
            raise TaskError(
                f"the loss is not the mean over a micro-batch's samples: {even:.4g} for {2 * half} of them, "
                f"{of_halves[0]:.4g} and {of_halves[1]:.4g} for its halves; a loss that couples "
                "samples, adds them up or weighs them unevenly needs groups=1 and micro_batches=1"
            )


class GridStage:
    """The layers of one worker.

    Args:
        layers: Called with what the stage before hands on; hands on a tensor or a tuple of tensors.
        number: k, from 0.
        loss: Of the last stage's output.
        clip: Largest norm of the stage's gradient; None for any.
        scheduler: Stepped after every update.
    """

    def __init__(
        self,
        layers: nn.Module,
        optimizer: Optimizer,
        *,
        setting: GridSetting,
        number: int,
        loss: Loss,
        clip: float | None = None,
        scheduler: LRScheduler | None = None,
    ) -> None:
        self.layers = layers
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.setting = setting
        self.number = number
        self._loss = _MeanLoss(loss, unchecked=setting.groups * setting.micro_batches > 1)
        self._clip = clip
        self._at_once = setting.delays[number] == 0
        """True if every micro-batch goes back before the weights move."""
        self._device = next(iter(layers.parameters()), torch.empty(0)).device
        self._live: dict[str, Tensor] = {name: p for name, p in layers.named_parameters() if p.requires_grad}
        self._prediction = WeightPrediction(optimizer, self._live, num_updates=setting.updates_late[number])
        self.kept: dict[int, _Kept] = {}
        self.snapshots: dict[int, dict[str, Tensor]] = {}
        """Copies of the weights, by version."""

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.setting.stages - 1

    @property
    def _stashes(self) -> bool:
        if self.setting.schedule == "2bw":
            return True
        return self.setting.weights == "stash" and not self._at_once and not self.setting.flushes

    def forward(self, action: Forward, inputs: Sequence[Tensor], target: Any) -> tuple[list[Tensor], float | None]:
        """Go forward with a micro-batch.

        Returns:
            What the next stage is given; of the last stage the loss instead.

        Raises:
            TaskError: The layers cannot take what they are given, hand on no tensors, or the loss is no scalar.
        """
        wanted = not self.is_first  # nobody is sent the gradients of the network's own inputs
        inputs = [tensor.detach().requires_grad_(wanted and _differentiable(tensor)) for tensor in inputs]
        again = self.setting.weights == "recompute" and not self._at_once and not self.is_last
        before = [tensor._version for tensor in inputs]
        random_state = None if self._at_once else RandomState.of(self._device)
        weights = self._weights(action.version) if self._stashes else {}
        buffers: dict[str, Tensor] = {}
        if not self._at_once:  # several graphs at a time: those of other micro-batches hold on to their buffers
            buffers = {name: buffer.clone() for name, buffer in self.layers.named_buffers()}
        with torch.set_grad_enabled(not again):
            output = self._call({**weights, **buffers}, inputs)
        if again and before != [tensor._version for tensor in inputs]:
            raise TaskError(f"{_name(self.layers)} {_IN_PLACE}")
        for name, buffer in buffers.items():
            self.layers.get_buffer(name).copy_(buffer)
        if self.is_last:
            loss = self._loss.of(output, target)
            self.kept[action.micro_batch] = _Kept(action.version, inputs, [loss])
            return [], float(loss.detach())
        outputs = _tensors(output)
        self.kept[action.micro_batch] = _Kept(action.version, inputs, [] if again else outputs, random_state)
        return [tensor.detach() for tensor in outputs], None

    def _call(self, weights: dict[str, Tensor], inputs: Sequence[Tensor]) -> Any:
        try:
            return functional_call(self.layers, weights, (_given(inputs),)) if weights else self.layers(_given(inputs))
        except (RuntimeError, TypeError, IndexError) as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
            reason = str(error).splitlines()[0]
            if "in-place" in reason and "leaf" in reason:
                raise TaskError(f"{_name(self.layers)} {_IN_PLACE}") from error
            raise TaskError(f"the stages do not chain: {_name(self.layers)} cannot take {shapes} ({reason})") from error

    def held(self) -> Held:
        tensors = [tensor for kept in self.kept.values() for tensor in (*kept.inputs, *kept.outputs)]
        copies = [weight for weights in self.snapshots.values() for weight in weights.values()]
        return Held(
            micro_batches=len(self.kept),
            inputs_bytes=sum(tensor.nbytes for tensor in tensors),
            copies=len(self.snapshots),
            copies_bytes=sum(weight.nbytes for weight in copies),
        )

    def _weights(self, version: int) -> dict[str, Tensor]:
        if version not in self.snapshots:
            self.snapshots[version] = _copied(self._prediction.predicted())
        return self.snapshots[version]

    def backward(self, action: Backward, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Go backward with a micro-batch; adds to the gradients of the weights.

        Args:
            action: Which, and how stale.
            gradients: Of what the stage handed on; none for the last stage.

        Returns:
            The gradients of the floating-point tensors that it was given, for the stage before.
        """
        kept = self.kept.pop(action.micro_batch)
        weights = self.snapshots[action.version] if self._stashes else self._live
        outputs = kept.outputs or self._again(kept, self._live)
        wanted = [tensor for tensor in kept.inputs if tensor.requires_grad]
        of: list[tuple[Tensor, Tensor | None]] = [(output, None) for output in outputs]
        if not self.is_last:  # a gradient comes of each floating-point output, whether or not it has a use here
            of = list(zip(filter(_differentiable, outputs), gradients, strict=True))
        of = [(output, gradient) for output, gradient in of if output.requires_grad]
        found: Sequence[Tensor | None] = torch.autograd.grad(
            [output for output, _ in of],
            [*wanted, *weights.values()],
            None if self.is_last else [gradient for _, gradient in of],
            allow_unused=True,
        )
        sent = [
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(wanted, found, strict=False)
        ]
        self._add(found[len(wanted) :])
        self._forget()
        if self.setting.shrink != 1.0:
            sent = [gradient * self.setting.shrink for gradient in sent]
        return sent

    def _again(self, kept: _Kept, weights: dict[str, Tensor]) -> list[Tensor]:
        """Go forward once more with these weights and the random numbers of then, and leave no other trace of it."""
        assert kept.random_state is not None
        buffers = {name: buffer.clone() for name, buffer in self.layers.named_buffers()}
        present = RandomState.of(self._device)
        kept.random_state.restore(self._device)
        try:
            return _tensors(functional_call(self.layers, {**weights, **buffers}, (_given(kept.inputs),)))
        finally:
            present.restore(self._device)

    @torch.no_grad()
    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        for live, gradient in zip(self._live.values(), gradients, strict=True):
            if gradient is None:
                continue
            live.grad = gradient if live.grad is None else live.grad + gradient

    def _forget(self) -> None:
        """Let go of the weights that nothing under way went forward with, nor goes forward with until the update."""
        if self.setting.schedule != "2bw":
            oldest = min((kept.version for kept in self.kept.values()), default=max(self.snapshots, default=0) + 1)
            for version in [version for version in self.snapshots if version < oldest]:
                del self.snapshots[version]

    @torch.no_grad()
    def update(self, action: Update) -> None:
        """Step the optimizer with the mean of the gradients that were added, if there are any."""
        if self.setting.schedule == "2bw":
            self._weights(action.version - 1)  # what goes forward until the next update goes with these
            for version in [version for version in self.snapshots if version < action.version - 2]:
                del self.snapshots[version]
        if action.num_micro_batches > 0:
            self._step(action.num_micro_batches)
        if self.scheduler is not None:
            self.scheduler.step()

    def _step(self, num_micro_batches: int) -> None:
        gradients = [p.grad for p in self._live.values() if p.grad is not None]
        if num_micro_batches > 1:
            torch._foreach_div_(gradients, num_micro_batches)
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._live.values(), self._clip)
        self._prediction.step()

    def state(self) -> dict[str, Any]:
        """Return all that the stage remembers, plain; of stashed forward passes what it takes to do them again."""
        return {
            "layers": {name: tensor.detach().clone() for name, tensor in self.layers.state_dict().items()},
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "scheduler": None if self.scheduler is None else deepcopy(self.scheduler.state_dict()),
            "prediction": self._prediction.state(),
            "gradients": {name: p.grad.clone() for name, p in self._live.items() if p.grad is not None},
            "kept": {
                number: [kept.version, [tensor.detach().clone() for tensor in kept.inputs], *_random(kept)]
                for number, kept in self.kept.items()
            },
            "snapshots": {
                version: {name: weight.detach().clone() for name, weight in weights.items()}
                for version, weights in self.snapshots.items()
            },
        }

    def load(self, state: dict[str, Any]) -> None:
        self.layers.load_state_dict(state["layers"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._prediction.load(state["prediction"])
        for name, gradient in state["gradients"].items():
            self._live[name].grad = gradient.clone()
        self.snapshots = {version: _copied(weights) for version, weights in state["snapshots"].items()}
        for number, (version, given, cpu, cuda) in state["kept"].items():
            inputs = [tensor.requires_grad_(_differentiable(tensor)) for tensor in given]
            self.kept[number] = kept = _Kept(version, inputs, [], RandomState(cpu, cuda))
            if self._stashes:
                kept.outputs = self._again(kept, self.snapshots[version])


def _random(kept: _Kept) -> tuple[Tensor | None, Tensor | None]:
    state = kept.random_state
    return (None, None) if state is None else (state.cpu, state.cuda)


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _given(tensors: Sequence[Tensor]) -> Any:
    """Return what layers are called with: a tensor, or a tuple of them, as in a `torch.nn.Sequential`."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _tensors(output: Any) -> list[Tensor]:
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TaskError(f"a stage hands on a tensor or a tuple of tensors; this one hands on a {type(output).__name__}")
    return tensors


def _copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}


def _name(layers: nn.Module) -> str:
    first = next(iter(layers.children()), layers)
    return f"the stage that begins with {type(first).__name__}"
