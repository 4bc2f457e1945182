"""The machine of DiLoCo on the store: a version is made as soon as a quorum of the workers has contributed.

After "Decoupled DiLoCo" (arXiv 2604.21428). A worker contributes after its own H steps, whenever that is, and goes on
from the outer parameters once they hold what it has contributed. They do as soon as K workers (the *quorum*) have
contributed and a *grace* window is over, in which others may still join; so no worker ever waits for more than the
quorum.

    worker 0    |---- H steps ----|---- H steps ----|---- H steps ----|
    worker 1    |------ H steps ------|...
    worker 2    |-------------------- H steps --------------------|
    version     v                     v + 1 (0, 1)                v + 2 (0, 2)                 K = 2

With K = 1 every delta is merged as it arrives (Liu et al. 2024, "Asynchronous Local-SGD Training for Language
Modeling"); with K at or above the number of workers it acts as a round of `plesio.policies.barrier`, and no grace is
needed.

Invariants:

- A worker contributes once to a version at most, and has credit for H steps (and the delay) beyond its last one, so it
  stands still until that is merged.
- A version is open only while some live worker has nothing that waits: that one will contribute, or leaves. So no
  schedule stops everyone. A departed worker's contribution counts; if the worker is back before that is merged, it is
  admitted then.
- Everything merged is merged on every server in the order of this machine's answers.

How a delta counts. N workers share the samples (those that rest, too). A version of M of them moves the parameters by
M/N of the mean of their deltas, so that all of a *round*, one contribution of every worker, move them as one
synchronous outer step. It is the part Σ steps / (N H) of a round: outer momentum is per round, and a contribution that
the end of the run cuts short has its share of it. So momentum is the *delayed Nesterov* of Liu et al.: it takes note of
a round at its end, and until then every version makes its part of the step with the momentum of the rounds before
(`plesio.runtime.server.interleaved`). Its memory is not lengthened by how old deltas are, as that of gradients is: a
small transformer then ends 6 % above the perplexity of synchronous rounds, instead of level with it. At its end
a worker contributes what compression has kept back of its deltas, as a contribution of no steps. It moves the
parameters at once, and without momentum, which has no round left for it.

*Fragments*. A worker contributes one of P fragments every H/P steps, in turn, and waits for that one alone, so each
fragment has versions, quorums and rounds of its own. Workers may then wait at different fragments. If all do, no quorum
will come, and the version that was opened first is made of what is there. At a pause or its end a worker contributes
all fragments, one after the other.

*Dynamic steps* (Liu et al. 2024, section 5). A worker that takes r times as long for a step as the fastest contributes
after H/r steps, so all contributions are about as old. Their pace comes with the contributions.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from plesio.policies.events import (
    Action,
    Admit,
    Apply,
    Arrived,
    Await,
    Elapsed,
    Event,
    Grant,
    Refuse,
    RefuseReason,
)
from plesio.policies.round_machine import RoundMachine

Grace = float | Literal["auto"]
"""Seconds for which others may join a quorum; ``auto``: half of the time that the delay's steps take."""

_PACE_SMOOTHING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """How a mean of deltas is made.

    Attributes:
        by_samples: Whether a delta counts by its samples.
        by_directions: Whether it is the mean of their lengths in that of their directions.
        corrects: Whether late deltas are corrected (`plesio.runtime.server.merging`).
    """

    by_samples: bool
    by_directions: bool
    corrects: bool


@dataclass(slots=True)
class _Member:
    """A live worker.

    Attributes:
        clock: The last reported one.
        credit: Steps up to which it may run.
        begun: The clock at which it was admitted.
        contributed_at: By fragment, the clock of its last contribution.
        step_s: Seconds of its steps, smoothed; 0 before its first contribution.
        among: N of its last contribution: what is kept back of it counts as much.
        sharing: Workers that there were when that was merged, and shared the samples of what it has done since.
    """

    clock: int
    credit: int
    begun: int
    contributed_at: dict[int, int] = field(default_factory=dict)
    step_s: float = 0.0
    among: int = 0
    sharing: int = 0


@dataclass(slots=True)
class _Version:
    """A version of a fragment that is open.

    Attributes:
        contributed: Workers, also departed ones, that have contributed to it.
        finite: Their contributions, in the order of arrival, with the steps that they cover.
        window: Number of the window in which others may join, if there has been one.
        waits: Whether that window is open.
    """

    contributed: set[int] = field(default_factory=set)
    finite: list[tuple[Arrived, int]] = field(default_factory=list)
    window: int | None = None
    waits: bool = False


class DecoupledMachine(RoundMachine):
    """Makes a version of the contributions that are there when the quorum is, and the grace is over.

    Args:
        local_steps: H, a worker's steps between two contributions.
        quorum: K, workers that contribute to a version at least; fewer where fewer are live.
        grace: Seconds from the quorum to the version; ``auto``: from the first contribution on.
        delay: Steps that a worker may run on behind its contribution.
        fragments: P, parts that are contributed in turn; it divides ``local_steps``.
        dynamic: Whether slow workers make fewer steps.
        merging: How a mean of deltas is made.
    """

    _live: dict[int, _Member]

    def __init__(
        self,
        *,
        local_steps: int,
        quorum: int,
        grace: Grace,
        delay: int,
        fragments: int,
        dynamic: bool,
        merging: Merging,
        clock: int = 0,
    ) -> None:
        super().__init__()
        self._local_steps, self._quorum, self._grace, self._delay = local_steps, quorum, grace, delay
        self._period = local_steps // fragments
        self._dynamic, self._merging = dynamic, merging
        self._floor = clock
        self._live = {}
        self._open: dict[int, _Version] = {}
        """Versions that are open, by fragment, in the order in which they were opened."""
        self._merged_at: list[list[int]] = [[] for _ in range(fragments)]
        """By fragment, the numbers of its versions."""
        self._asked = 0
        """Number of the last window."""

    @property
    def _contributed(self) -> set[int]:  # type: ignore[override]  # read by the base class alone
        return {worker for version in self._open.values() for worker in version.contributed}

    def handle(self, event: Event) -> tuple[Action, ...]:
        if isinstance(event, Elapsed):
            for version in self._open.values():
                if version.window == event.number:
                    version.waits = False
            return self._merge_if_due()
        return super().handle(event)

    def _admit(self, worker: int) -> tuple[Action, ...]:
        member = self._live[worker] = _Member(clock=self._floor, credit=self._floor, begun=self._floor)
        return (Admit(worker=worker, clock=self._floor), *self._grant(worker, member))

    def _depart(self, worker: int) -> tuple[Action, ...]:
        del self._live[worker]
        self._raise_floor()
        return self._merge_if_due()

    def _arrive(self, event: Arrived) -> tuple[Action, ...]:
        worker, clock, fragment = event.worker, event.clock, event.fragment
        assert worker in self._live, f"worker {worker} has not joined"
        assert worker not in self._contributed, f"worker {worker} has contributed to an open version already"
        member = self._live[worker]
        ran, num_steps = clock - member.clock, clock - member.contributed_at.get(fragment, member.begun)
        assert 0 <= event.num_steps <= ran, f"{event} of a worker at clock {member.clock}"
        assert clock <= member.credit, f"worker {worker} ran to clock {clock} on credit {member.credit}"
        assert event.base_version <= self._version, f"version {event.base_version} follows {self._version}"
        if num_steps == 0:
            return (self._apply(fragment, [(event, 0)], among=member.among),)
        member.clock = member.contributed_at[fragment] = clock
        if event.step_s > 0:
            before = member.step_s or event.step_s
            member.step_s = before + _PACE_SMOOTHING * (event.step_s - before)
        self._raise_floor()
        if not event.finite:
            refused = Refuse(worker=worker, clock=clock, reason=RefuseReason.NOT_FINITE)
            return (refused, *self._grant(worker, member), *self._merge_if_due())
        version = self._open.setdefault(fragment, _Version())
        version.contributed.add(worker)
        version.finite.append((event, num_steps))
        return self._open_window(version) + self._merge_if_due()

    def _raise_floor(self) -> None:
        self._floor = min((member.clock for member in self._live.values()), default=self._floor)

    def _open_window(self, version: _Version) -> tuple[Action, ...]:
        """Ask for the time of the grace: of ``auto`` from the first contribution on, else from the quorum on."""
        number = len(version.contributed)
        opens = number == 1 if self._grace == "auto" else number == self._quorum and self._grace > 0
        if not opens or not self._live.keys() - version.contributed:
            return ()
        self._asked += 1
        version.window, version.waits = self._asked, True
        if self._grace == "auto":
            return (Await(number=self._asked, steps=self._delay),)
        return (Await(number=self._asked, for_s=self._grace),)

    def _merge_if_due(self) -> tuple[Action, ...]:
        actions: list[Action] = []
        while (fragment := self._due()) is not None:
            actions += self._merge(fragment)
        return tuple(actions)

    def _due(self) -> int | None:
        """Return a fragment whose quorum and grace are there, or the first if no live worker will contribute."""
        for fragment, version in self._open.items():
            ready = len(version.contributed) >= self._quorum and not version.waits
            if ready or self._live.keys() <= version.contributed:
                return fragment
        if self._live.keys() <= self._contributed:
            return next(iter(self._open), None)
        return None

    def _merge(self, fragment: int) -> list[Action]:
        version = self._open[fragment]
        actions: list[Action] = [self._apply(fragment, version.finite)]
        del self._open[fragment]
        for worker in sorted(version.contributed & self._live.keys()):
            actions += self._grant(worker, self._live[worker])
        for worker in [one for one in self._returning if one in version.contributed]:
            self._returning.remove(worker)
            actions += self._admit(worker)
        return actions

    def _apply(self, fragment: int, merged: Sequence[tuple[Arrived, int]], *, among: int = 0) -> Apply:
        """Make a version of the mean of these contributions, each with the steps that it covers.

        ``among`` is the number of workers that share the samples; 0: as many as there are, or were when the steps of a
        contribution began: the last one of a round counts no more because the others have done theirs and left.
        """
        before = self._merged_at[fragment]
        self._version += 1
        now = len(self._live.keys() | self._resting | {event.worker for event, _ in merged})
        members = [self._live[event.worker] for event, _ in merged if event.worker in self._live]
        num_workers = among or max([now, *(member.sharing for member in members)])
        for member in members:
            member.among, member.sharing = num_workers, now
        staleness = tuple(len(before) - bisect_right(before, event.base_version) for event, _ in merged)
        before.append(self._version)
        return Apply(
            updates=tuple((event.worker, event.clock) for event, _ in merged),
            weight=len(merged) / num_workers,
            version=self._version,
            staleness=staleness,
            share=sum(num_steps for _, num_steps in merged) / (num_workers * self._local_steps),
            by_samples=self._merging.by_samples,
            fragment=fragment,
            by_directions=self._merging.by_directions,
            corrected=self._merging.corrects,
        )

    def _grant(self, worker: int, member: _Member) -> tuple[Action, ...]:
        credit = member.clock + self._steps_of(member) + self._delay
        if credit <= member.credit:
            return ()
        member.credit = credit
        return (Grant(worker=worker, clock=credit),)

    def _steps_of(self, member: _Member) -> int:
        """Return a worker's steps to its next contribution: fewer for one that is slower than the fastest."""
        paces_s = [one.step_s for one in self._live.values() if one.step_s > 0]
        if not self._dynamic or not member.step_s:
            return self._period
        # more than the delay: one contribution is under way at a time
        return max(1 + self._delay, round(self._period * min(paces_s) / member.step_s))

    def validate(self) -> None:
        contributed = [worker for version in self._open.values() for worker in version.contributed]
        assert len(contributed) == len(set(contributed)), "a worker waits at two fragments"
        for version in self._open.values():
            assert len(version.finite) == len(version.contributed), "a worker counts twice in one version"
            assert {event.worker for event, _ in version.finite} == version.contributed, version
            assert len(version.contributed) < self._quorum or version.waits, "a version is open that is due"
        assert not contributed or self._live.keys() - set(contributed), "a version is open that waits for nobody"
        assert self._floor == min((one.clock for one in self._live.values()), default=self._floor)
        assert all(member.clock <= member.credit for member in self._live.values())
        assert not self._live.keys() & set(self._returning)
        assert set(self._returning) <= set(contributed)
        assert not self._resting & (self._live.keys() | set(self._returning))
