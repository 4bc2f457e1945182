"""Steps a replica's optimizer, and describes it as exchanges and reviews need it.

A session steps its optimizer itself, as the policy says. A step of it by the program or by ``scaler.step``, or of
another optimizer that has the same parameters (in a hook on gradients, say), moves the parameters of this worker alone,
or twice. torch calls one hook before the steps of all optimizers; it finds the session by the first of its parameters.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plesio.core.errors import TaskError
from plesio.core.exact import own_numbers
from plesio.runtime.parameters.optimizer_spec import accumulates, normalises
from plesio.runtime.parameters.optimizers import clear_state, parts_of
from plesio.runtime.worker.exchange.mean_moments import can_share_moments
from plesio.runtime.worker.objects import objects_of
from plesio.runtime.worker.own_changes import OwnChanges
from plesio.runtime.worker.replica_checks import settings_of

_OTHER = (
    "the script has made another optimizer ({name}) of parameters that this session trains, and session.step goes on "
    "with the one that plesio.join was given: set the rates and options of its groups in place of making another, or "
    "close this session and open one with the other"
)


class Stepper:
    """The optimizer of a replica.

    Args:
        changes: Counts what hooks write after a step as the script's.

    Raises:
        TaskError: The optimizer's step needs a closure.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, sparse: Mapping[str, torch.nn.Parameter], changes: OwnChanges
    ) -> None:
        self._optimizer = optimizer
        self.optimizers = parts_of(optimizer)
        """The optimizers that the user has, one or several."""
        self.settings = settings_of(optimizer)
        """Settings of the optimizer as the program made it."""
        self._sparse, self._changes = sparse, changes
        self._watched: list[object] = []
        """Kept, so that nothing else has an id of theirs."""
        self._references: int | None = None
        """References to the parameters at the latest look, but for those of the optimizers' states."""
        self.is_stepping = False
        for one in self.optimizers:
            _check_closure(one)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Refuse steps of these parameters that the session has not asked for, until `unwatch`."""
        self._watched = [self._optimizer, *parameters]
        _watches.add(self, self._watched)

    def unwatch(self) -> None:
        _watches.remove(self._watched)
        self._watched.clear()

    def look_at_others(self, warn: Callable[[str], None]) -> None:
        """Warn of another optimizer that has been made of these parameters since the latest look.

        Nothing here leads to it, and a search among all objects takes as long as many small steps. So there is one only
        where the parameters have more references than before (a single one is a variable's that a loop over them has
        left), and what it finds holds no more of them than have come; or fewer, as under another policy.
        """
        parameters = self._watched[1:]
        now = sum(map(sys.getrefcount, parameters)) - sum(len(one.state) for one in self.optimizers)
        before, self._references = self._references, now
        if before is None or abs(now - before) < min(2, len(parameters)):
            return
        found: dict[int, str] = {}
        ids, own = {id(one) for one in parameters}, {id(group) for group in self._optimizer.param_groups}
        for other in objects_of(torch.optim.Optimizer):
            if "of_session" in vars(other):
                continue
            groups = vars(other).get("param_groups", ())  # wrappers have none of their own, or the same
            held = sum(id(one) in ids for group in groups for one in group["params"])
            if held > 0 and (now < before or held <= now - before) and not any(id(group) in own for group in groups):
                found[held + len(other.state)] = type(other).__name__
        if found:
            warn(_OTHER.format(name=found[max(found)]))

    def check_asked(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step that an optimizer of the parameters is about to make and that the session has not asked for."""
        # a step at rate 0 moves nothing: torch.distributed.checkpoint makes one to have an optimizer's state
        if not any(group.get("lr", 1.0) for group in optimizer.param_groups):
            return
        raise TaskError(
            f"{type(optimizer).__name__}.step() was called beside session.step(), which steps the same parameters: "
            "leave it out, and scaler.step(optimizer) and optimizers in hooks on gradients too; session.step(loss) "
            "steps the optimizer that plesio.join was given"
        )

    def step(self, action: Callable[[], object] | None = None) -> None:
        """Step the optimizer; or else do what steps it, as the session."""
        self.is_stepping = True
        try:
            with self._changes.by_hooks(self.optimizers):
                (action or self._optimizer.step)()
        finally:
            self.is_stepping = False

    @contextmanager
    def scaled_rate(self, share: float) -> Iterator[None]:
        """Multiply the optimizer's learning rates by ``share`` within this context, also those set by a schedule."""
        rates = [group["lr"] for group in self._optimizer.param_groups] if share != 1 else []
        for group, rate in zip(self._optimizer.param_groups, rates, strict=False):
            group["lr"] = rate * share
        try:
            yield
        finally:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=False):
                group["lr"] = rate

    def options(self) -> list[dict[str, Any]]:
        """Return the optimizer's options, group by group, numbers as Python's own (a schedule may set a NumPy one)."""
        return [
            {key: own_numbers(value) for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]

    def takes_steps_elsewhere(self) -> None:
        """Have schedulers not take it for a mistake that the optimizer's own ``step`` may never be called."""
        for optimizer in self.optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    @contextmanager
    def state_aside(self) -> Iterator[None]:
        """Empty the optimizer's state within this context; what was there before comes back afterwards."""
        before = dict(self._optimizer.state)
        clear_state(self._optimizer)
        try:
            yield
        finally:
            clear_state(self._optimizer)
            self._optimizer.state.update(before)

    def sparse_momentum(self) -> None:
        """Make SGD's momentum of sparse gradients sparse, as its own steps do: Nesterov's cannot add a dense one."""
        for parameter in self._sparse.values():
            state = self._optimizer.state.get(parameter, {})
            if isinstance(momentum := state.get("momentum_buffer"), torch.Tensor) and not momentum.is_sparse:
                state["momentum_buffer"] = momentum.to_sparse(1)

    @property
    def momentum(self) -> float:
        """The largest of the optimizer's groups' ``momentum`` or first of ``betas``, torch's names; 0 without."""
        groups = self._optimizer.param_groups
        return max(float(group.get("momentum") or group.get("betas", (0.0,))[0]) for group in groups)

    @property
    def normalises(self) -> bool:
        """True if steps are not known to be in proportion to gradients, as those of SGD are."""
        return normalises(self._optimizer)

    @property
    def accumulates(self) -> bool:
        return accumulates(self._optimizer)

    @property
    def can_share_moments(self) -> bool:
        """True if local steps can leave the optimizer's state as the mean gradient would (`mean_moments`)."""
        return not self._sparse and can_share_moments(self._optimizer)


def _check_closure(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TaskError(
            f"{type(optimizer).__name__} evaluates the loss by itself, as often as it likes (step(closure)), where "
            "workers exchange once a step; use an optimizer that steps with the gradients that are there"
        )


class _Watches:
    """The steppers that watch, of all sessions of this process, by the ids of their optimizers and parameters."""

    def __init__(self) -> None:
        self._of: dict[int, Stepper] = {}
        self._lock = threading.Lock()
        self._hook: torch.utils.hooks.RemovableHandle | None = None

    def add(self, stepper: Stepper, watched: Iterable[object]) -> None:
        with self._lock:
            self._of.update({id(one): stepper for one in watched})
            self._hook = self._hook or register_optimizer_step_pre_hook(self._before)

    def remove(self, watched: Iterable[object]) -> None:
        with self._lock:
            for one in watched:
                self._of.pop(id(one), None)
            if not self._of and self._hook is not None:
                self._hook.remove()
                self._hook = None

    def _before(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if (stepper := self._of.get(id(optimizer))) is None:
            held = (self._of.get(id(one)) for group in optimizer.param_groups for one in group["params"])
            stepper = next((one for one in held if one is not None), None)
        if stepper is not None and not stepper.is_stepping:
            stepper.check_asked(optimizer)


_watches = _Watches()
