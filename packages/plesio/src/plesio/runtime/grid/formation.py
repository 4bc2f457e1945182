"""Which groups make up a grid, and at which tick that changes. Pure: no clock, tensor or socket.

A group keeps its number, and its workers their ranks, as long as it is there; who is there has a *place* among the
others, by which the mixing matrix and the dealing of samples go. When a group is lost or others are to join, a worker
that knows of it proposes a `GroupChange`: a tick, so far ahead that all have heard of it by then, and who goes on. All
messages of the grid carry it, up and down each group and from group to group.

**Agreement.** What is proposed for tick T is known to all before T, whoever is lost meanwhile, if those that are left
are connected: a message takes at most `hop_ticks` from group to group, and no way has more hops than there are groups.
So all who come to T know the same earliest proposal, and that one holds, also where several were made. What the others
say is proposed anew in the next *generation*, if it is still so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plesio.policies.grid import GridSetting


@dataclass(frozen=True, slots=True)
class GridPlace:
    """A worker's place: rank ``s K + k`` is stage k of group s.

    >>> GridPlace.of(5, GridSetting(groups=2, stages=4))
    GridPlace(group=1, stage=1)
    """

    group: int
    stage: int

    @classmethod
    def of(cls, rank: int, setting: GridSetting) -> "GridPlace":
        return cls(*divmod(rank, setting.stages))


@dataclass(frozen=True, slots=True, order=True)
class GroupChange:
    """A change of the groups at a tick. The earliest of several holds; if ticks are equal, the least.

    Attributes:
        tick: After so many micro-batches.
        lost: Groups that do not, each with the first micro-batch that it had not trained on for the others.
        joined: Groups that do from then on.
    """

    tick: int
    lost: tuple[tuple[int, int], ...] = ()
    joined: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Formation:
    """The groups of a generation.

    Attributes:
        groups: Their numbers, in ascending order.
        generation: How often groups have been lost or joined.
        began: After how many micro-batches this one began.

    >>> formation = Formation.first(GridSetting.parse("3x2,mixing=ring"))
    >>> later = formation.after(GroupChange(40, lost=((1, 20),), joined=(3,)))
    >>> later.groups, later.setting.spec, later.workers
    ((0, 2, 3), 'grid:3x2,mixing=ring', [0, 1, 4, 5, 6, 7])
    """

    setting: GridSetting
    groups: tuple[int, ...]
    generation: int = 0
    began: int = 0

    @classmethod
    def first(cls, setting: GridSetting) -> "Formation":
        return cls(setting=setting, groups=tuple(range(setting.groups)))

    def after(self, regrouping: GroupChange) -> "Formation":
        """Form the groups of the next generation.

        Raises:
            ConfigError: Groups join, and the grid mixes by a matrix that the user gave.
        """
        lost = {group for group, _ in regrouping.lost}
        places = [place for place, group in enumerate(self.groups) if group not in lost]
        return Formation(
            setting=self.setting.regrouped(places, num_joined=len(regrouping.joined)),
            groups=(*(self.groups[place] for place in places), *regrouping.joined),
            generation=self.generation + 1,
            began=regrouping.tick,
        )

    def place(self, group: int) -> int:
        return self.groups.index(group)

    def worker(self, group: int, stage: int) -> int:
        return group * self.setting.stages + stage

    @property
    def workers(self) -> list[int]:
        return [self.worker(group, stage) for group in self.groups for stage in range(self.setting.stages)]

    def neighbours(self, group: int) -> dict[int, float]:
        """Return the groups that a group mixes with, and the weight of each."""
        shares = self.setting.mixing.neighbours(self.place(group))
        return {self.groups[place]: share for place, share in shares.items()}

    def unreached(self, *, lost: Sequence[int]) -> list[int]:
        """Return the groups that have no way to the first one that is left, if ``lost`` are gone."""
        places = [self.place(group) for group in lost if group in self.groups]
        return [self.groups[place] for place in self.setting.mixing.unreached(lost=places)]

    @property
    def window(self) -> int:
        """Micro-batches of an update: what changes at a tick does so between two updates."""
        return self.setting.micro_batches

    @property
    def hop_ticks(self) -> int:
        """Ticks until a worker's news has reached all of its group, and the neighbours that mix with it."""
        setting = self.setting
        return (setting.every + setting.bound + 1) * setting.micro_batches + max(setting.delays)

    def agreed(self, tick: int) -> int:
        """Return a tick before which news from ``tick`` has reached all; no update is begun then."""
        known = tick + self.setting.groups * self.hop_ticks + 2
        return -(-known // self.window) * self.window

    @property
    def horizon(self) -> int:
        """Micro-batches back to the first one that a lost group may not have trained on, when a regrouping is due."""
        return 2 * (self.agreed(0) + self.hop_ticks)


@dataclass(slots=True)
class News:
    """Ticks to come, as far as a worker has been told; it passes them on with all that it sends.

    Attributes:
        generation: Of the groups that are there.
        saves: Ticks after which checkpoints are to be taken.
    """

    generation: int = 0
    saves: list[int] = field(default_factory=list)
    regrouping: GroupChange | None = None

    @property
    def save_at(self) -> int | None:
        return self.saves[-1] if self.saves else None

    def header(self) -> dict[str, object]:
        """Return the entries of a message's header; none if there is no news."""
        fields: dict[str, object] = {}
        if self.saves:
            fields["save_at"] = self.save_at
        if self.regrouping is not None:
            due = self.regrouping
            fields["regroup"] = [self.generation, due.tick, due.lost, due.joined]
        return fields

    def receive(self, header: Mapping[str, Any]) -> None:
        if "save_at" in header:
            self.save(header["save_at"])
        if "regroup" in header:
            generation, tick, lost, joined = header["regroup"]
            if generation == self.generation:
                self.propose(GroupChange(tick, tuple((group, first) for group, first in lost), tuple(joined)))

    def save(self, tick: int | None) -> None:
        if tick is not None and tick > (self.save_at or 0):
            self.saves.append(tick)

    def propose(self, regrouping: GroupChange) -> None:
        """Have the groups change so, unless they do earlier, otherwise."""
        self.regrouping = regrouping if self.regrouping is None else min(self.regrouping, regrouping)

    def passed(self, tick: int) -> None:
        self.saves = [save for save in self.saves if save >= tick]

    def regrouped(self, formation: Formation) -> None:
        self.generation, self.regrouping = formation.generation, None
