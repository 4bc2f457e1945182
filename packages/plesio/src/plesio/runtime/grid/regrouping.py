"""Brings a worker from one set of groups to the next: at one tick all go on with those that are there from then on.

At the tick that `plesio.runtime.grid.formation` has agreed on, every worker adds what the mixings under way come to,
deals the samples anew that nobody was given or that lost groups had not trained on, and mixes from then on with its new
neighbours. Micro-batches under way in a group stay under way: its stages know each other already. So no micro-batch is
trained on twice or left out, but for those of a lost group: what it had told the others of by mixing counts; of what
was under way in it, or trained on since the last mixing, its later stages may have told something already, and it is
dealt again all the same. Where groups join (`plesio.runtime.grid.joining`), all take what is under way off their
links before they make new ones.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from plesio.core.errors import ConfigError, WorkerLostError
from plesio.runtime.grid.collector import Collector
from plesio.runtime.grid.column import Column
from plesio.runtime.grid.feed import Feed
from plesio.runtime.grid.formation import Formation, GridPlace, GroupChange, News
from plesio.runtime.grid.joining import Door, hand_over, meet_all
from plesio.runtime.grid.mixer import Mixer
from plesio.runtime.grid.network import WholeNetwork
from plesio.runtime.grid.tick import StageWorker

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Regrouper:
    """Brings one worker from each generation of groups to the next.

    Args:
        neighbours: Makes a mixer with the groups that are there, given what is known of lost ones.
        door: Where newcomers wait; None for a worker by itself.
        say: Takes a line for the run's result.
    """

    worker: StageWorker
    _: KW_ONLY
    place: GridPlace
    news: News
    collector: Collector
    neighbours: Callable[[Formation, Mapping[int, int]], Mixer | None]
    door: Door | None
    say: Callable[[str], None]

    def after_tick(self, feed: Feed, values: Callable[[], dict[str, Any]]) -> None:
        """Propose what this worker sees a reason for, and do what is due.

        ``values`` tells all that this worker remembers.

        Raises:
            WorkerLostError: The others have given this group up.
            TransportError: A worker was lost at the moment when a group joined.
        """
        tick = self.worker.machine.given
        if self.news.regrouping is None:
            self._propose(tick)
        due = self.news.regrouping
        if due is not None and due.tick == tick:
            self._regroup(due, feed, values)

    @property
    def _lost(self) -> dict[int, int]:
        mixer = self.worker.mixer
        return {} if mixer is None else mixer.lost

    def _propose(self, tick: int) -> None:
        """Propose a change: for lost groups on a first stage, for newcomers on the worker that collects.

        A first stage is the last that goes backward: its whole group has done what it has done.
        """
        if self.place.stage > 0:
            return
        lost = tuple(sorted(self._lost.items()))
        joined = self._waiting() if self.collector.collects else ()
        if lost or joined:
            self.news.propose(GroupChange(self.collector.formation.agreed(tick), lost=lost, joined=joined))

    def _waiting(self) -> tuple[int, ...]:
        waiting = () if self.door is None else self.door.waiting()
        try:
            self.collector.formation.after(GroupChange(0, joined=waiting))
        except ConfigError as error:
            for group in waiting:
                assert self.door is not None, "they wait there"
                self.door.refuse(group, str(error))
            return ()
        return waiting

    def _regroup(self, due: GroupChange, feed: Feed, values: Callable[[], dict[str, Any]]) -> None:
        lost = dict(due.lost)
        if self.place.group in lost:
            raise WorkerLostError.expelled(self.collector.rank)
        worker, collector = self.worker, self.collector
        # what neighbours sent for the old mixing must not be taken for the new one
        worker.end_mixings()
        column, links, watch = worker.column, collector.links, collector.watch
        # newcomers need new links; what is on the old ones is taken off first
        if due.joined:
            under_way = column.state(gradients_on_way=worker.gradients_on_way)
            invitation = self._invitation(due)
            due = replace(due, joined=() if invitation is None else tuple(invitation["joined"]))
        formation = collector.formation.after(due)
        if due.joined:
            assert self.door is not None, "newcomers wait there"
            assert invitation is not None, "they were invited"
            watch.close()
            links, watch = self.door.link(formation, at=invitation["at"])
            column = Column.of(links, self.place, formation.setting)
            column.load(under_way)
        # from here on nothing is under way between groups
        missing = feed.missing(lost)
        for group, first in due.lost:
            num_samples = sum(feed.missing({group: first}).values())
            self.say(
                f"{num_samples} samples that group {group} had not trained on were dealt to the others after their "
                f"micro-batch {due.tick}"
            )
        dropped = feed.regroup(formation, lost=lost)
        if dropped:
            self.say(f"{dropped} samples of lost groups were left out: the loop over their data had ended")
        collector.regrouped(formation, links, watch)
        self.news.regrouped(formation)
        mixer = self.neighbours(formation, self._lost)
        worker.regroup(formation.setting, column=column, mixer=mixer, missing=missing)
        if due.joined and self.place.group == formation.groups[0]:
            state = {**values(), "saves": self.news.saves, "gathered": collector.num_gathered}
            for group in due.joined:
                assert links is not None, "newcomers are at their other ends"
                hand_over(links, state, to=formation.worker(group, self.place.stage))
        if mixer is not None:
            mixer.meet()

    def _invitation(self, due: GroupChange) -> dict[str, Any] | None:
        """Return the message by which all go on with newcomers; None if one is missing, and all go on without them."""
        collector, door = self.collector, self.door
        assert collector.links is not None, "there are others"
        assert door is not None, "newcomers wait there"
        lost = {group for group, _ in due.lost}
        stages = collector.formation.setting.stages
        return meet_all(
            collector.links,
            rank=collector.rank,
            workers=[rank for rank in collector.formation.workers if rank // stages not in lost],
            decide=lambda: door.invite(collector.formation, due),
        )

    def close(self) -> None:
        if self.door is not None and self.collector.collects:
            self.door.close()

    def end(self, feed: Feed) -> None:
        """Count the samples of lost groups that are left out: no tick is left at which they could be dealt."""
        self.worker.tally.leave_out(feed.missing(self._lost), given=self.worker.machine.given)
        for group, first in sorted(self._lost.items()):
            num_samples = sum(feed.missing({group: first}).values())
            if num_samples and self.collector.collects:
                self.say(
                    f"{num_samples} samples that group {group} had not trained on were left out: the run ended before "
                    "they could be dealt to the others"
                )


@dataclass(frozen=True, slots=True)
class Composed:
    """Parts that are put together at the first step: a worker, the whole network, and what changes its groups."""

    worker: StageWorker
    network: WholeNetwork
    regrouper: Regrouper
