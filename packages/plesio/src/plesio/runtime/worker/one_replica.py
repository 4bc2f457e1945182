"""Replicas that differ between steps: a script that takes one worker's for the shared parameters, and is told so.

Frameworks that evaluate or save on all workers at once have the shared parameters in every worker's model meanwhile.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.distributed as dist

from plesio.core.errors import ConfigError
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.own_hook import OwnHook
from plesio.runtime.worker.step_times import StepClock, StepTimes
from plesio.runtime.worker.world import SessionParts


class OneReplica:
    """Warns when the model's state is taken, when it is copied, and when it is evaluated outside of an evaluation.

    Args:
        parts: Its policy, and what knows how far the replica is ahead of the others, if workers can form new groups.
        steps: The worker's clock: before its first step all replicas are equal.
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
        for hook in self._hooks:
            hook.remove()


class _BeforeForward(OwnHook):
    def __call__(self, model: torch.nn.Module, _: object) -> None:
        if not (model.training or torch.is_grad_enabled()):
            self._action()


class SharedModel:
    """A context in which the model has the shared parameters; the worker's own come back afterwards.

    All workers enter it at the same place. The training clock is stopped meanwhile. Where nothing differs it changes
    nothing, and neither does one within another.

    Args:
        one_replica: Tells whether the replica may differ from the others' now; None for a worker alone.
        find: Gives the shared state on the worker that has it, and None elsewhere. All workers call it alike.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        one_replica: OneReplica | None,
        find: Callable[[], State | None],
        times: StepTimes,
        meter: Meter,
    ) -> None:
        self._replica, self._one_replica, self._find = replica, one_replica, find
        self._times, self._meter = times, meter
        self._has_buffers = any(True for _ in replica.model.buffers())
        self._depth = 0
        self._kept = ExitStack()

    @property
    def differs(self) -> bool:
        """True if the model may not be the shared one now: its parameters, or under any policy its buffers."""
        one_replica = self._one_replica
        return self._depth == 0 and one_replica is not None and (self._has_buffers or one_replica.is_own)

    def __enter__(self) -> None:
        """Put the shared parameters into the model; ConfigError without a process group of torch's, or on an island."""
        if self.differs:
            if self._replica.island is not None:
                raise ConfigError(
                    "session.shared is for workers of one process; an island evaluates in session.evaluate"
                )
            with ExitStack() as kept:
                kept.enter_context(self._times.stopped())
                kept.enter_context(self._replica.changes.put_back(evaluates=True))
                kept.enter_context(self._meter.within("metric"))
                kept.enter_context(self._replica.loaded(self._everywhere()))
                self._kept = kept.pop_all()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._kept.close()

    def _everywhere(self) -> State:
        """Send the state of the first worker that has one to all."""
        if not dist.is_initialized():
            raise ConfigError(
                "session.shared sends the parameters by torch's own process group, and there is none: write "
                "session.evaluate(...), or call torch.distributed.init_process_group() before plesio.join"
            )
        device = self._replica.device
        dist.all_reduce(torch.zeros((), device=device))  # all have come: what they have pushed is in the shared state
        found = self._find()
        first = torch.tensor(dist.get_rank() if found is not None else dist.get_world_size(), device=device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN)
        state = self._replica.state() if found is None else found
        for alike in by_dtype(state.values()):
            flat = flat_of(alike).to(device)
            dist.broadcast(flat, src=int(first.item()))
            write_parts(flat, alike)
        return state
