"""A session's optimizer, for frameworks that own the loop and call ``optimizer.step()`` themselves.

Groups, options, state and hooks are those of the optimizer that `plesio.join` was given; only its step is the
session's. Of several optimizers each has a step of its own, as in a script that steps them in turns: the session makes
it with the gradients of that optimizer's parameters alone, and the others' wait for their own step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch
from torch.optim import Optimizer

from plesio.core.errors import ConfigError
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.step_times import StepClock
from plesio.runtime.worker.whole_state import load_optimizer


class SessionOptimizer(Optimizer):
    """Steps by the session: `step` exchanges, steps the optimizer and clears its gradients.

    Whatever else an optimizer has is that of the one that `plesio.join` was given: ``param_groups``, ``state``,
    ``defaults``, ``zero_grad``, ``state_dict``, and the hooks that are registered.

    Args:
        average: Averages the gradients, where the session's step would as DDP does.
        load: Has the session begin from a state of this optimizer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        others: Sequence[Optimizer],
        step: Callable[..., None],
        average: Callable[[], None],
        load: Callable[[Optimizer, Mapping[str, Any]], None],
    ) -> None:  # what torch's own would make is the optimizer's
        self.wrapped = optimizer
        self._others, self._make_step, self._average, self._load = others, step, average, load
        self._samples = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self.wrapped if name in ("state", "param_groups") else self, name, value)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Refuse to be copied or pickled: torch's copy has no session."""
        raise ConfigError("session.optimizer is of one session and cannot be copied or pickled: take its state_dict()")

    def given(self, samples: int) -> None:
        """Count so many samples as the next step's, over a loader of one's own."""
        self._samples += samples

    def average(self) -> None:
        """Average the gradients that are there now, under ``bsp``, so that what clips them clips their mean.

        A backward pass that follows a call of the model has done so already. All workers call it alike; under other
        policies it does nothing.
        """
        self._average()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the session's step, with the gradients that are there or that ``closure`` computes.

        Args:
            closure: Computes the loss and its gradients, once.

        Returns:
            The result of the closure; a single number is recorded as the step's loss.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        samples, self._samples = self._samples, 0
        with self._others_aside():
            self._make_step(_number(result), samples=samples or None)
        return result

    @contextmanager
    def _others_aside(self) -> Iterator[None]:
        """Take away the gradients of the other optimizers' parameters within this context."""
        held = (p for other in self._others for group in other.param_groups for p in group["params"])
        aside = [(parameter, parameter.grad) for parameter in held if parameter.grad is not None]
        for parameter, _ in aside:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in aside:
                parameter.grad = gradient

    def zero_grad(self, set_to_none: bool = True) -> None:  # torch's signature
        self.wrapped.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer; the next step refuses it, for the workers have agreed on the parameters."""
        self.wrapped.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer; on the store, while the servers step, it is theirs."""
        return self.wrapped.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin from this state, and from the parameters that the model has now.

        All workers call it before their first step, with the same state.

        Raises:
            ConfigError: This worker has made a step, or the run was resumed from a checkpoint.
            DataError: The state is of another optimizer.
        """
        self._load(self.wrapped, state_dict)

    def __repr__(self) -> str:
        return f"SessionOptimizer({self.wrapped!r})"


def session_optimizer(
    replica: Replica, *, step: Callable[..., None], average: Callable[[], None], steps: StepClock, resumed: bool
) -> Any:
    """Make the session's optimizer, or a list of them where the script has several."""
    began = steps.finished

    def load(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        with replica.changes:
            load_optimizer(replica, optimizer, state, steps=steps.finished - began, resumed=resumed)

    own = replica.stepper.optimizers
    made = [
        SessionOptimizer(
            one, others=[other for other in own if other is not one], step=step, average=average, load=load
        )
        for one in own
    ]
    return made if len(made) > 1 else made[0]


def _number(result: Any) -> torch.Tensor | float | None:
    single = isinstance(result, int | float) or (isinstance(result, torch.Tensor) and result.numel() == 1)
    return result if single else None
