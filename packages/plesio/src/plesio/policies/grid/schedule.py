"""The schedule of one stage: which micro-batch next, in which direction, at which weights; when to update and to mix.

A pure machine: micro-batches in, actions out; no clock, tensor or socket. A stage does its actions in their order, each
as soon as its input is there, so no clock has to be shared: what a stage computes is a function of the order alone, and
the same in every world.

**Order.** Stage k of K goes forward with micro-batch n and then backward with micro-batch ``n - d_k``, its *delay*. An
update follows every M-th backward pass (``micro_batches``). Forward pass n is therefore done with
``max(0, n - d_k) // M`` updates, and by the time its gradient is applied there have been ``n // M``: it is from
``d_k // M`` to ``⌈d_k / M⌉`` updates stale. With ``d_k = 2 (K - 1 - k)`` an activation has a tick to get to the next
stage, and a gradient one to get back (Pham and Ahn 2025; the delayed gradients of Zhuang et al. 2022).

**Invariants**, held by `validate` and by tests for all schedules: every micro-batch goes forward once, then backward
once, in the same order; at most ``d_k + 1`` are under way; no version is used that does not exist; an update applies
every gradient that has come since the last one. No schedule can deadlock: forward pass n of stage k needs only what
stage k - 1 does before its own backward pass ``n - d_{k-1}``, and backward pass n needs only what stage k + 1 does at
its step ``n + d_{k+1}``, no later than stage k's ``n + d_k``.

**Regrouping.** When groups are lost or join (`plesio.runtime.grid.formation`), all begin at one tick with the machine
of the new grid. Micro-batches under way stay so; mixings under way have been ended. A group that joins has nothing
under way: of what the others have it *skips* the backward passes, but counts updates as they do, so that versions, and
with them mixings and learning rates, stay alike in all groups.
"""

from dataclasses import dataclass, replace

from plesio.policies.grid.setting import GridSetting


@dataclass(frozen=True, slots=True)
class Forward:
    """Go forward with a micro-batch, with the weights of ``version``."""

    micro_batch: int
    version: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Go backward with a micro-batch that went forward with the weights of ``version``, ``staleness`` updates ago."""

    micro_batch: int
    version: int
    staleness: int


@dataclass(frozen=True, slots=True)
class Update:
    """Step the optimizer with the mean gradient of the last ``num_micro_batches``; ``version`` is the new one.

    If all of them were ``skipped`` there is no gradient, and the optimizer stays as it is.
    """

    version: int
    num_micro_batches: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class BeginMixing:
    """Send the weights of ``version`` to the neighbours."""

    version: int


@dataclass(frozen=True, slots=True)
class EndMixing:
    """Add what the mixing that began at ``version`` comes to; wait for the neighbours' weights if need be."""

    version: int


Action = Forward | Backward | Update | BeginMixing | EndMixing


@dataclass(frozen=True, slots=True)
class StageState:
    """The whole state of a machine, for a checkpoint."""

    given: int = 0
    returned: int = 0
    version: int = 0
    gathered: int = 0
    under_way: tuple[tuple[int, int], ...] = ()
    mixing: tuple[int, ...] = ()
    skipped: int = 0

    def of_newcomer(self) -> "StageState":
        """Return the same place in the order, with nothing under way."""
        return replace(self, under_way=(), mixing=(), skipped=self.gathered)


class StageMachine:
    """One stage's schedule.

    Args:
        stage: k, from 0.

    >>> machine = StageMachine(GridSetting(stages=2), stage=0)
    >>> for _ in range(3):
    ...     print(*(f"{type(action).__name__}" for action in machine.give()))
    Forward
    Forward
    Forward Backward Update
    """

    def __init__(self, setting: GridSetting, *, stage: int, state: StageState | None = None) -> None:
        state = StageState() if state is None else state
        self._setting = setting
        self._stage = stage
        self._delay = setting.delays[stage]
        self.given, self.returned = state.given, state.returned
        """Micro-batches so far, and those among them that have gone backward."""
        self.version = state.version
        """Updates so far."""
        self._gathered = state.gathered
        self._skipped = state.skipped
        """Micro-batches among those gathered that this machine was not given."""
        self._under_way = dict(state.under_way)
        """Version of the weights that each micro-batch went forward with, of those that have not gone backward."""
        self._mixing = list(state.mixing)

    @property
    def returned_behind(self) -> int:
        """Micro-batches that the stage behind has gone back with when it has been given as many as this one."""
        if self._stage == self._setting.stages - 1:
            return self.returned
        if self._setting.flushes:
            assert self.given % self._setting.micro_batches == 0, "asked between two windows"
            return self.given
        return max(0, self.given - self._setting.delays[self._stage + 1])

    @property
    def mixing(self) -> tuple[int, ...]:
        """Versions at which mixings began that are under way."""
        return tuple(self._mixing)

    def at(self, state: StageState) -> "StageMachine":
        """Return the same stage's machine in ``state``."""
        return StageMachine(self._setting, stage=self._stage, state=state)

    def regrouped(self, setting: GridSetting) -> "StageMachine":
        """Return the same stage's machine for another number of groups, after the mixings under way have ended."""
        return StageMachine(setting, stage=self._stage, state=replace(self.state(), mixing=()))

    def state(self) -> StageState:
        return StageState(
            given=self.given,
            returned=self.returned,
            version=self.version,
            gathered=self._gathered,
            under_way=tuple(self._under_way.items()),
            mixing=self.mixing,
            skipped=self._skipped,
        )

    def give(self) -> list[Action]:
        """Take the next micro-batch and return the actions until the one after it."""
        number = self.given
        self.given += 1
        version = self._version_for(number)
        self._under_way[number] = version
        actions: list[Action] = [Forward(number, version)]
        if number - self._delay >= self._window(number):
            actions += self._backward()
        if self._setting.flushes and self.given % self._setting.micro_batches == 0:
            actions += self._drain()
        return actions

    def end(self) -> list[Action]:
        """Go back with all that are under way, since no more micro-batches come."""
        actions = self._drain()
        if self._gathered:
            actions += self._update()
        for version in self._mixing:
            actions.append(EndMixing(version))
        self._mixing.clear()
        return actions

    def _window(self, number: int) -> int:
        """Return the first micro-batch that ``number`` may be under way with."""
        return number - number % self._setting.micro_batches if self._setting.flushes else 0

    def _version_for(self, number: int) -> int:
        if self._setting.schedule == "2bw":
            return max(0, number // self._setting.micro_batches - 1)
        return self.version

    def _drain(self) -> list[Action]:
        actions: list[Action] = []
        while self.returned < self.given:
            actions += self._backward()
        return actions

    def _backward(self) -> list[Action]:
        number = self.returned
        self.returned += 1
        self._gathered += 1
        version = self._under_way.pop(number, None)
        actions: list[Action] = []
        if version is None:
            self._skipped += 1
        else:
            actions.append(Backward(number, version, self.version - version))
        if self._gathered == self._setting.micro_batches:
            actions += self._update()
        return actions

    def _update(self) -> list[Action]:
        self.version += 1
        actions: list[Action] = [Update(self.version, self._gathered - self._skipped, self._skipped)]
        self._gathered = self._skipped = 0
        if self._setting.groups > 1:
            actions += self._mix()
        return actions

    def _mix(self) -> list[Action]:
        actions: list[Action] = []
        if self.version % self._setting.every == 0:
            self._mixing.append(self.version)
            actions.append(BeginMixing(self.version))
        while self._mixing and self._mixing[0] + self._setting.bound <= self.version:
            actions.append(EndMixing(self._mixing.pop(0)))
        return actions

    def validate(self) -> None:
        first = next(iter(self._under_way), self.given)  # a newcomer skips what is before it
        assert first >= self.returned, "none after its backward pass"
        assert list(self._under_way) == list(range(first, self.given)), "in order, each once"
        assert len(self._under_way) <= self._delay + 1, "more under way than the delay allows"
        assert all(0 <= version <= self.version for version in self._under_way.values()), "no such version"
        assert self._gathered < max(2, self._setting.micro_batches + 1), "a gradient that was not applied"
