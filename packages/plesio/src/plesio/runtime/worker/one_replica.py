"""A script that takes one worker's replica for the shared parameters, where replicas differ between steps."""

import torch

from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.own_hook import OwnHook
from plesio.runtime.worker.step_times import StepClock
from plesio.runtime.worker.world import SessionParts

__all__ = ["OneReplica"]


class OneReplica:
    """Warns when the model's state is taken, when it is copied, and when it is evaluated outside of an evaluation.

    Args:
        replica: The worker's, which is one of several.
        parts: Its policy, and what knows how far the replica is ahead of the others, if workers can form new groups.
        steps: The worker's clock: before its first step all replicas are equal.
        meter: Takes the warning.
    """

    def __init__(self, replica: Replica, parts: SessionParts, *, steps: StepClock, meter: Meter) -> None:
        self._replica, self._policy, self._recovery = replica, parts.policy.spec, parts.recovery
        self._bound = parts.policy.bound if parts.bound is None else parts.bound
        self._steps, self._began, self._meter = steps, steps.finished, meter
        model = replica.model
        self._hooks = [
            model.register_state_dict_pre_hook(OwnHook(self.taken, on_copy=self.taken))  # type: ignore[no-untyped-call]
        ]
        if self._bound > 0:
            self._hooks.append(model.register_forward_pre_hook(_BeforeForward(self._evaluated)))

    def taken(self, *_: object) -> None:
        """Warn if the state that is taken or copied here is not that of the run."""
        self._warn("copied, or its state_dict() taken,")

    def _evaluated(self) -> None:
        if self._meter.totals.within != "metric":
            self._warn("evaluated")

    @property
    def is_own(self) -> bool:
        """True if this replica's parameters may differ from the others' now."""
        if self._steps.finished == self._began:
            return False
        meets = self._bound == 0 if self._recovery is None else self._recovery.meets
        return not meets or self._own_steps > 0

    @property
    def _own_steps(self) -> int:
        return 0 if self._recovery is None else self._recovery.own_steps()

    def _warn(self, use: str) -> None:
        if self._replica.changes.writing or not self.is_own:
            return
        own = self._own_steps
        self._meter.warn(
            f"the model was {use} {'between two averagings' if own else 'in mid-run'} under {self._policy}: that "
            "is one worker's, and the others' differ; do so in the function of session.evaluate, which has the shared "
            "parameters, or on rank 0 when the session is closed, or have join(..., checkpoint=FOLDER) save"
        )

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()


class _BeforeForward(OwnHook):
    def __call__(self, model: torch.nn.Module, _: object) -> None:
        if not (model.training or torch.is_grad_enabled()):
            self._action()
