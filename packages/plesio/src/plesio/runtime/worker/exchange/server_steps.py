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

from plesio.policies import Policy
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["ServerSteps"]


class ServerSteps:
    """Makes one worker's optimizer honour the script while the servers step.

    Args:
        replica: Stepped by the servers.
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
        self._warn = warn
        self._handles = []
        replica.changes.lost_under(policy, warn=warn, refuses=refuses, elsewhere=True)
        replica.stepper.takes_steps_elsewhere()
        if policy.update == "gradient":
            for optimizer in replica.stepper.optimizers:
                self._handles += [
                    optimizer.register_state_dict_pre_hook(self._asked),
                    optimizer.register_load_state_dict_post_hook(self._loaded),
                ]

    def _asked(self, _optimizer: Optimizer) -> None:
        self._fetch()

    def _loaded(self, _optimizer: Optimizer) -> None:
        self._replica.changes.found("the optimizer's state")

    @contextmanager
    def before(self, *, servers: bool) -> Iterator[None]:
        """Run the hooks before a step; they run no second time within.

        Args:
            servers: Whether it is theirs alone, so that hooks for all optimizers are run as well.
        """
        kept = [(optimizer, optimizer._optimizer_step_pre_hooks) for optimizer in self._replica.stepper.optimizers]
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
        with self._replica.changes.by_hooks(self._replica.stepper.optimizers):
            for one in self._replica.stepper.optimizers:
                _run(one, chain(one._optimizer_step_post_hooks.values(), _global_optimizer_post_hooks.values()))

    def close(self) -> None:
        """Let go of the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._replica.changes.lost_under(None, warn=self._warn, refuses=False)


def _run(optimizer: Optimizer, hooks: Iterator[Any]) -> None:
    for hook in hooks:
        hook(optimizer, (optimizer,), {})
