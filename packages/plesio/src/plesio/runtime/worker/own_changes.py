"""Notices what a script writes into parameters by itself, between two steps of its session.

A write in place moves a parameter's version, which costs nothing to read, but says not whether the value is another
now: averaged weights that are swapped in for an evaluation, and out again, leave everything as it was. And one through
``parameter.data`` moves none. So values are compared too: with a copy that is kept after step 1, 2, 4, 8 ..., and after
every step once a version has moved, or a value was another.

A policy decides what becomes of it (`Policy.undoes_writes`). Where it would be lost it is refused at the next step.
Under any policy the run's last exchange may follow the script's last write: the user is told if that was changed.

Where shared parameters are evaluated and not those in the model, averaged weights that are swapped in for an evaluation
would not be. They are noticed at once if a copy is there, and else by their being swapped out after it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.optim import Optimizer

from plesio.core.errors import TaskError
from plesio.policies import Policy
from plesio.runtime.worker.own_state import OwnState

_INSTEAD = (
    "train under plain bsp or local_sgd, whose workers step by themselves; load states before plesio.join, or by "
    "session.load_state_dict"
)
_STATE = "the optimizer's state"


class OwnChanges:
    """Notices the script's own writes into the parameters of one worker.

    It is a context: writes within count as the session's. A step enters it twice.

    Args:
        parameters: Tells them by name; the session writes to them only within the context.
    """

    def __init__(self, parameters: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._parameters = parameters
        self._watches = False
        self._moved = False
        self._version = 0
        self._num_left = 0
        self._copies: dict[str, torch.Tensor] | None = None
        self._found: str | None = None
        self.writing = 0
        """Number of contexts, one in another, in which the session is at work."""
        self.seen = False
        """True once the script has changed a parameter."""
        self._unsure = False
        """True once the script has written to a parameter with no copy left to compare with."""
        self._lost: tuple[str, bool] | None = None
        """Says what becomes of the changes, and whether that is an error."""
        self._sums: torch.Tensor | None = None
        """Sums of the parameters as the script left them when it last changed them; None once a step has followed."""
        self._warn: Callable[[str], None] = lambda line: None
        self._elsewhere: str | None = None
        """The policy under which parameters are evaluated that are elsewhere."""
        self._evaluated = self._swapped = False
        """True from an evaluation to the next step; and once something was swapped out between them."""
        self._states: list[tuple[Optimizer, OwnState]] = []
        self._states_version = 0
        self._states_here = False
        """True unless these states were empty, as they are with the servers, when they were last written."""
        self._stepped = False
        """True if the session has made a step in its present context: fused optimizers move no version."""
        self._hooks_count = False
        """True where something follows a hook after a step before it runs again."""

    def watch(self) -> None:
        """Watch for changes from now on: they matter, now or later."""
        self._watches = True

    def lost_under(
        self, policy: Policy | None, *, warn: Callable[[str], None], refuses: bool, elsewhere: bool = False
    ) -> None:
        """Take note that they are lost from here on, if they are under ``policy``.

        Args:
            policy: In force; None where one has ended.
            warn: Tells the user.
            refuses: Whether what is lost is an error; else the user is told.
            elsewhere: Whether the parameters are evaluated elsewhere too, so that none can be swapped in for it.
        """
        why = None if policy is None else policy.undoes_writes
        self._lost = None if policy is None or why is None else (f"under {policy.spec} {why}", refuses)
        self._warn, self._elsewhere = warn, policy.spec if policy is not None and elsewhere else None
        self._hooks_count = elsewhere or (policy is not None and policy.bound > 0 and policy.update == "delta")
        self._watches |= policy is not None and (why is not None or policy.bound > 0 or elsewhere)

    def watch_states(self, optimizers: Iterable[Optimizer]) -> None:
        """Take note from here on when the script empties the states of these optimizers, or sets others; [] ends it."""
        for one, state in self._states:
            if one.state is state:
                one.state = state.plain()
        self._states = [
            (one, OwnState(one.state, action=self._set_state, asked=self._asked_for_state)) for one in optimizers
        ]
        self._states_here = any(state for _, state in self._states)
        for one, state in self._states:
            one.state = state
        self._states_version = self._states_written()

    @contextmanager
    def writes_states(self) -> Iterator[None]:
        """Count what is written into the optimizers' states within this context as the session's."""
        self.writing += 1
        try:
            yield
        finally:
            self.writing -= 1
            self._states_here, self._states_version = True, self._states_written()

    def _states_written(self) -> int:
        """Count the writes into the tensors that are here: of those before the servers stepped, or fetched."""
        written = 0
        for _, state in self._states:  # in every step, as `_written`
            for entry in dict.values(state):
                for one in entry.values():
                    if isinstance(one, torch.Tensor):
                        written += one._version
        return written

    def _set_state(self) -> None:
        self._states_here = True
        if not self.writing:
            self.found(_STATE)

    def _asked_for_state(self) -> None:
        self._states_here = True  # it is made then
        if not self.writing and self._elsewhere is not None:
            self._warn(
                f"under {self._elsewhere} the servers have the optimizer's state, and what the script looked at in "
                "optimizer.state is empty: optimizer.state_dict() fetches it, and what is written into it is lost"
            )

    def loaded_state(self) -> None:
        self.found(_STATE)
        self.watch_states([one for one, _ in self._states])

    def begin(self) -> None:
        """Count writes from here on as the script's, except within the context."""
        if self._watches:
            self._leave()

    def found(self, name: str) -> None:
        self._found, self.seen = name, True

    def adopt(self) -> None:
        """Count what the script has written so far as the session's: all workers begin from it."""
        self._found, self._num_left, self._swapped = None, 0, False
        self.seen = self._moved = self._unsure = False
        self.begin()

    def check(self) -> None:
        """Tell what the script has changed since the last step, where that is lost.

        Raises:
            TaskError: It is, and no other policy will be gone to.
        """
        for one, state in self._states:  # in every step, so without a call
            if one.state is not state:
                self.loaded_state()
                break
        if self._states_here and self._states_version != (written := self._states_written()):
            self._states_version = written
            self.found(_STATE)
        found, self._found, self._sums = self._found, None, None
        if self._swapped:
            self._tell_swapped()
            return
        if self._lost is None:
            return
        why, refuses = self._lost
        if found is not None:
            line = f"the script changed {found} outside of session.step(), but {why}; {_INSTEAD}"
            if refuses:
                raise TaskError(line)
            self._warn(line)
        elif self._unsure:
            self._warn(
                "the script wrote to parameters outside of session.step(): if it did not put them back as they were, "
                f"{why}; {_INSTEAD}"
            )

    def _tell_swapped(self, *, refuses: bool = True) -> None:
        self._swapped = False
        line = (
            f"the script changed parameters around session.evaluate, which under {self._elsewhere} has the shared ones "
            "and not what is in the model: swap averaged weights in and out within the function that it calls, or let "
            "that evaluate the averaged model"
        )
        if refuses and self._lost is not None and self._lost[1]:
            raise TaskError(line)
        self._warn(line)

    def __enter__(self) -> None:
        if self._num_left:
            self._look()
        self.writing += 1

    def __exit__(self, *_: object) -> None:
        self.writing -= 1
        if self._states_here:
            self._states_version = self._states_written()
        if self._watches and (self._copies is None or self._stepped or self._written() != self._version):
            self._leave()

    @contextmanager
    def put_back(self, *, evaluates: bool = False) -> Iterator[None]:
        """Restore all after this context, in which the session writes: also what the script has swapped in.

        Raises:
            TaskError: The context ``evaluates`` the shared parameters, and others are swapped in for it.
        """
        noticed = evaluates and self._elsewhere is not None and self._num_left > 0
        if self._elsewhere and self._num_left:
            swapped = self._look()
            if noticed and swapped:
                self._tell_swapped()
        before = self._written() if self._watches else 0
        self.writing += 1
        try:
            yield
        finally:
            self.writing -= 1
            self._version += self._written() - before if self._watches else 0
            if noticed:
                self._copies = {name: p.detach().clone() for name, p in self._parameters().items()}
                self._evaluated = True

    def at_end(
        self, final: dict[str, torch.Tensor] | None, policy: Policy, *, warn: Callable[[str], None]
    ) -> dict[str, torch.Tensor] | None:
        """Tell the user if the run's last exchange has changed what the script had just written; returns ``final``."""
        if self._swapped:
            self._tell_swapped(refuses=False)
        if self._sums is not None and not _equal(self._sums, self._sum_up(final or {})):
            warn(
                f"the last exchange of {policy.spec} came after what the script wrote into {self._found} at the end, "
                "and changed it: what is clamped, scaled or set there, write once more after session.close()"
            )
        return final

    def _sum_up(self, final: Mapping[str, torch.Tensor]) -> torch.Tensor:
        own = {name: p.detach() for name, p in self._parameters().items()}
        return torch.stack([final.get(name, p).to(p.device).sum(dtype=torch.float64) for name, p in own.items()])

    def by_hooks(self, optimizers: Iterable[Optimizer]) -> AbstractContextManager[None]:
        """Count what hooks after a step of these optimizers write, within this context of a step, as the script's."""
        self._stepped = True
        hooked = [one for one in optimizers if one._optimizer_step_post_hooks] if self._watches else ()
        return self._around(hooked) if hooked else nullcontext()

    @contextmanager
    def _around(self, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        kept = [(one, one._optimizer_step_post_hooks) for one in optimizers]
        for one, hooks in kept:
            around = [(-1, lambda *_: self._leave()), *hooks.items(), (-2, lambda *_: self._look_at_hooks())]
            one._optimizer_step_post_hooks = OrderedDict(around)
        try:
            yield
        finally:
            for one, hooks in kept:
                one._optimizer_step_post_hooks = hooks

    def _look_at_hooks(self) -> None:
        before = self._found, self._sums
        self._look()
        if not self._hooks_count:
            self._found, self._sums = before
        self._leave()

    def _written(self) -> int:
        written = 0
        for parameter in self._parameters().values():  # in every step: a sum over a generator takes twice as long
            written += parameter._version
        return written

    def _leave(self) -> None:
        self._stepped = self._evaluated = False
        self._version = self._written()
        self._num_left += 1
        keeps = self._moved or self._num_left & (self._num_left - 1) == 0
        self._copies = {name: p.detach().clone() for name, p in self._parameters().items()} if keeps else None

    def _look(self) -> bool:
        """Look for changes; returns whether some were found by a copy."""
        before, self._version = self._version, self._written()
        moved = self._version != before
        if self._copies is not None:
            parameters = self._parameters()
            for name, copy in self._copies.items():
                if not _equal(copy, parameters[name].detach()):
                    self.found(f'"{name}"')
                    self._sums, self._moved = self._sum_up({}), True
                    self._swapped |= self._evaluated
                    return True
        elif moved:
            self._unsure = True
        self._moved |= moved
        return False


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare all values; NaN equals itself."""
    return torch.equal(one, other) or not ((one != other) & ~(one.isnan() & other.isnan())).any()
