"""Which samples a grid's groups are dealt, round by round, and which of them a lost group takes with it.

All groups compute every round by themselves (`plesio.runtime.worker.rounds`). Those that a lost group may not have
trained on are remembered; when the others regroup, what it had not trained on comes first, and then what nobody was
given. Of loops over the data that are over, it comes in the present one, if they went over the same data set.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from plesio.protocol.plans import Remainder, Span, cut
from plesio.runtime.worker.loading import SynchronousBatches
from plesio.runtime.worker.rounds import RoundRecords, Unfinished


@dataclass(slots=True, kw_only=True)
class Round:
    """A micro-batch of each group.

    Attributes:
        plan: Of which loop over the data.
        groups: Groups that were dealt one.
        sizes: Samples of each.
        spans: Of all, in their order.
        left: What was left of the plan after it.
        data: The data set that the loop goes over; None until the training loop is given it.
        tick: Number of the micro-batch in which it was trained on; None until then.
    """

    plan: int
    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    spans: tuple[Span, ...]
    left: Remainder
    data: object = None
    tick: int | None = None

    @property
    def of_all(self) -> int:
        return sum(self.sizes)

    def of(self, group: int) -> tuple[int, list[Span]]:
        """Return the number of a group's samples, and their spans; none if it was not there."""
        if group not in self.groups:
            return 0, []
        place = self.groups.index(group)
        return self.sizes[place], cut(self.spans, self.sizes)[place]


class Deal(RoundRecords):
    """The rounds of all groups.

    Args:
        horizon: How many rounds are remembered.
        say: Takes a line on samples that are left out.
    """

    def __init__(self, group: int, groups: Sequence[int], *, horizon: int, say: Callable[[str], None]) -> None:
        super().__init__(groups.index(group), len(groups), warn=say)
        self.groups = tuple(groups)
        self._horizon = horizon
        self._ahead_of_training: deque[Round] = deque()
        self._given: deque[Round] = deque()
        self._whole: tuple[int, Remainder] | None = None

    def equal_sizes(self, num_samples: int, *, batch_size: int) -> Iterator[list[int]]:
        """Yield the sizes of each round's micro-batches, none above ``batch_size``: a stage has no more room.

        Of a full round and a rest of fewer samples than groups, two rounds are made.

        >>> list(Deal(0, [0, 1], horizon=1, say=print).equal_sizes(17, batch_size=4))
        [[4, 4], [3, 2], [2, 2]]
        """
        num_groups, full = self.num_workers, self.num_workers * batch_size
        while num_samples >= num_groups:
            size = min(num_samples, full)
            if 0 < num_samples - size < num_groups and batch_size > 1:
                size = -(-num_samples // 2)
            share, extra = divmod(size, num_groups)
            yield [share + (group < extra) for group in range(num_groups)]
            num_samples -= size

    def begin(self, plan: int, whole: Remainder) -> Remainder:
        """Begin to take rounds of a plan; returns what is left of it."""
        left = super().begin(plan, whole)
        self._whole = plan, left
        self._ahead_of_training.clear()
        return left

    def dealt(self, plan: int, spans: Sequence[Span], *, ended: int) -> None:
        """Record the samples of the latest round, in the order of groups; with it ``ended`` are dealt of the plan."""
        assert self._whole is not None, "it was begun"
        super().dealt(plan, spans, ended=ended)
        left = self._whole[1].after(ended)
        self._ahead_of_training.append(
            Round(plan=plan, groups=self.groups, sizes=self._drawn[-1].sizes, spans=tuple(spans), left=left)
        )

    def skip(self, whole: Remainder, *, plan: int, batch_size: int, rounds: int) -> Round | None:
        """Go on after so many rounds of a plan, which were drawn before; returns the last of them."""
        source = SynchronousBatches(whole, batch_size=batch_size, plan=plan, rounds=self)
        last = None
        for spans in islice(source.batches(), rounds):
            source.taken(sum(map(len, spans)))
            last = self.drawn()
        if last is not None:
            left = Unfinished(remainder=last.left, samples=self.global_samples, dropped=0)
            self.regroup(self.rank, self.num_workers, generation=self.generation, clock=0, plan=plan, left=left)
        return last

    def drawn(self) -> Round:
        """Return the next round, whose samples a loader has drawn; only regrouping takes them back."""
        drawn = self._ahead_of_training.popleft()
        self.trained(drawn.sizes[self.rank])
        self.mark(self._num_trained, settled=self._num_trained)
        return drawn

    def give(self, drawn: Round, *, data: object) -> None:
        drawn.data = data
        self._given.append(drawn)
        while len(self._given) > self._horizon:
            self._given.popleft()

    def missing(self, lost: Mapping[int, int]) -> dict[int, int]:
        """Return the samples, by micro-batch, that lost groups were given and had not trained on.

        Args:
            lost: Groups, each with the first micro-batch that it had not trained on.
        """
        found: dict[int, int] = {}
        for given in self._given:
            for group, first in lost.items():
                if given.tick is not None and given.tick >= first:
                    found[given.tick] = found.get(given.tick, 0) + given.of(group)[0]
        return found

    def deal_again(
        self, group: int, groups: Sequence[int], *, lost: Mapping[int, int], present: Round | None
    ) -> Unfinished:
        """Begin anew with other groups.

        Args:
            group: This one's number.
            groups: All that are there from now on.
            lost: Those that are not any more, each with the first micro-batch that it had not trained on.
            present: The latest round, whose loop over the data goes on; None if there was none.

        Returns:
            What is left of the loop.
        """
        spans: list[Span] = []
        dropped = 0
        plan, left = (-1, None) if present is None else (present.plan, present.left)
        for given in self._given:
            for gone, first in lost.items():
                if given.tick is None or given.tick < first:
                    continue
                num_samples, its = given.of(gone)
                if present is not None and given.data is present.data:
                    before = given.plan - plan  # epochs count from the plan's first
                    spans += [Span(span.epoch + before, span.start, span.stop) for span in its]
                else:
                    dropped += num_samples
        if left is not None:
            left = Remainder(
                num_samples=left.num_samples,
                spans=tuple(sorted((*spans, *left.spans))),
                epoch=left.epoch,
                start=left.start,
                num_fresh=left.num_fresh,
            )
        unfinished = Unfinished(remainder=left, samples=self.global_samples, dropped=dropped)
        self.go_on(group, groups, plan=plan, left=unfinished)
        return unfinished

    def go_on(self, group: int, groups: Sequence[int], *, plan: int, left: Unfinished) -> None:
        self.groups = tuple(groups)
        self._ahead_of_training.clear()
        self.regroup(groups.index(group), len(groups), generation=self.generation + 1, clock=0, plan=plan, left=left)
