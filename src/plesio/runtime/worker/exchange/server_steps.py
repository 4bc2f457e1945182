"""A worker's optimizer where the servers step: it runs hooks, fetches its state on demand, and refuses the rest.

step hooks          run on the worker: before a step on its own gradient, which is pushed as they leave it; after it
with the parameters that were pulled
state_dict()        of the optimizer gives the servers' state of that moment
load_state_dict()   is refused, as is what the script writes into parameters: the servers would never see it
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.core.errors import TaskError
from plesio.policies import Policy
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["ServerSteps"]

_INSTEAD = (
    "train under bsp or local_sgd, whose workers step by themselves; load states before plesio.join, or by "
    "session.load_state_dict"
)


class ServerSteps:
    """Makes one worker's optimizer honour the script while the servers step.

    Args:
        replica: What they step.
        fetch: Puts the servers' state into the replica's optimizer.
        policy: In force; under one that pushes deltas the workers step, and only the end differs.
        warn: Tells the user.
        refuses: Whether what would be lost is an error; else the user is told.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        fetch: Callable[[], None],
        policy: Policy,
        warn: Callable[[str], None],
        refuses: bool,
    ) -> None:
        self._replica = replica
        self._fetch = fetch
        self._policy = policy
        self._warn = warn
        self._refuses = refuses
        self._keeps = False
        self._handles = []
        replica.changes.watch()
        replica.takes_steps_elsewhere()
        if policy.update == "gradient":
            for optimizer in replica.optimizers:
                self._handles += [
                    optimizer.register_state_dict_pre_hook(self._asked),
                    optimizer.register_load_state_dict_post_hook(self._loaded),
                ]

    def _asked(self, _optimizer: Optimizer) -> None:
        if not self._keeps:
            self._fetch()

    def _loaded(self, _optimizer: Optimizer) -> None:
        self._replica.changes.found("the optimizer's state")

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Within, ``state_dict`` gives what the optimizer has."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    def check(self) -> None:
        """See what the script has changed by itself.

        Raises:
            TaskError: It would be lost.
        """
        changes = self._replica.changes
        found = changes.take()
        if self._policy.update == "delta":
            return  # it is a part of the next one
        if found is None:
            if changes.unsure:
                self._warn(
                    f"the script wrote to parameters outside of session.step(): if it did not put them back as they "
                    f"were, the servers of {self._policy.spec} never see it; {_INSTEAD}"
                )
            return
        line = (
            f"the script changed {found} outside of session.step(), but under {self._policy.spec} the servers step and "
            f"never see it; {_INSTEAD}"
        )
        if self._refuses:
            raise TaskError(line)
        self._warn(line)

    def ended(self) -> None:
        """No step follows."""
        if self._replica.changes.seen:
            self._warn(
                f"what the script writes into parameters after its last step is not in the final ones of "
                f"{self._policy.spec}, which are the servers'; write it once more after session.close()"
            )

    @contextmanager
    def before(self, *, servers: bool) -> Iterator[None]:
        """Run the hooks before a step; they run no second time within.

        Args:
            servers: Whether it is theirs alone, so that hooks for all optimizers are run as well.
        """
        kept = [(optimizer, optimizer._optimizer_step_pre_hooks) for optimizer in self._replica.optimizers]
        for optimizer, hooks in kept:
            _run(optimizer, chain(_global_optimizer_pre_hooks.values() if servers else (), hooks.values()))
            optimizer._optimizer_step_pre_hooks = OrderedDict()
        try:
            yield
        finally:
            for optimizer, hooks in kept:
                optimizer._optimizer_step_pre_hooks = hooks

    def after(self) -> None:
        """Run the hooks after a step of the servers, whose parameters the replica has."""
        for optimizer in self._replica.optimizers:
            _run(optimizer, chain(optimizer._optimizer_step_post_hooks.values(), _global_optimizer_post_hooks.values()))

    def close(self) -> None:
        """Let go of the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _run(optimizer: Optimizer, hooks: Iterator[Any]) -> None:
    for hook in hooks:
        hook(optimizer, (optimizer,), {})
