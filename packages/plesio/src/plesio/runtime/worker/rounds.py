"""The rounds of a synchronous plan on this rank: in which shares they are dealt, which batch is at hand, what is done.

Every rank computes every round by itself, so nothing but the shares has to travel, and these must change at the same
round everywhere. A loader with workers of its own draws rounds ahead of the training; so a change holds from the first
round that no rank can have drawn yet (`RoundRecords.draw_ahead` rounds after the last one trained on).

A step's gradient is the mean over a rank's own batch. Where batches are of unequal size, the mean over the whole round
is ``sum(n_i g_i) / sum(n_i)``: `RoundRecords.weight` is ``n_i N / sum(n_i)``, by which a rank's gradient is multiplied
before the mean over the N ranks is taken.

When workers go on in a new group, samples of rounds that are in no replica are dealt out again. So the rounds that not
all replicas are known to hold are kept with their samples; all counts begin anew with each group (a *generation*).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from plesio.protocol.plans import Remainder, Span, cut
from plesio.runtime.coordinator.leases import round_sizes


def divide(total: int, shares: Sequence[float]) -> list[int]:
    """Divide ``total`` into whole parts, none empty, so that the largest part over its share is as small as can be.

    With shares in proportion to the workers' paces that is the shortest round.

    >>> divide(64, [0.3, 0.3, 0.3, 0.1]), divide(4, [0.98, 0.01, 0.01])
    ([20, 19, 19, 6], [2, 1, 1])
    """
    assert total >= len(shares), f"{total} samples for {len(shares)} workers"
    parts = [max(1, int(total * share)) for share in shares]
    while sum(parts) < total:
        parts[min(range(len(parts)), key=lambda index: ((parts[index] + 1) / shares[index], index))] += 1
    while sum(parts) > total:
        parts[max(range(len(parts)), key=lambda index: (parts[index] > 1, parts[index] / shares[index], -index))] -= 1
    return parts


class _Round(NamedTuple):
    own: int
    of_all: int
    equal: int
    """Samples that this rank would have with equal shares."""
    sizes: tuple[int, ...]
    """By rank."""
    in_shares: bool


class Mark(NamedTuple):
    """A worker's work by the end of step ``clock``: rounds of this generation, samples of all workers."""

    clock: int
    rounds: int
    global_samples: int


class _Dealt(NamedTuple):
    number: int
    plan: int
    sizes: tuple[int, ...]
    spans: tuple[Span, ...]
    ended: int
    """Samples of the plan that were dealt in this generation, this round's among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The samples to be dealt out in the next generation.

    Attributes:
        remainder: Rest of the common plan; None is all of it.
        dropped: Samples of plans that are over, of which no replica holds anything.
    """

    remainder: Remainder | None
    samples: int
    dropped: int


class RoundRecords:
    """Records of one rank's rounds, for all plans of a run.

    Args:
        warn: Takes a line, on every rank alike, on samples that are left out.
    """

    def __init__(self, rank: int, num_workers: int, *, warn: Callable[[str], None]) -> None:
        self.rank, self.num_workers, self._warn = rank, num_workers, warn
        self._ahead = 0
        """Rounds that a loader may draw before the training gets to them."""
        self.global_samples = 0
        self._shares: tuple[float, ...] = ()
        self._changes: deque[tuple[int, tuple[float, ...]]] = deque()
        self._drawn: deque[_Round] = deque()
        self._latest: list[_Round] = []
        """Rounds of the last step."""
        self._num_drawn = 0
        self._num_trained = 0
        self._taken = 0
        """Samples of this rank that the training loop has been given and has made no step of."""
        self.generation = 0
        self._plan = 0
        self._remainder: Remainder | None = None
        """Rest of ``_plan`` when the generation began; None is all of it."""
        self._marks: deque[Mark] = deque([Mark(0, 0, 0)])
        self._dealt: deque[_Dealt] = deque()
        self._ended = (-1, 0)
        """A plan, and its samples in rounds that are not kept any more."""
        self._base: tuple[int, Remainder] | None = None
        """The plan that rounds are taken of, and what was to be dealt of it in this generation."""

    @property
    def plan_left(self) -> tuple[int, Remainder | None]:
        """The plan in which this generation began, and what was left of it; None is all."""
        return self._plan, self._remainder

    def go_on_from(
        self,
        clock: int,
        *,
        global_samples: int,
        plan: int,
        remainder: Remainder | None,
        shares: Sequence[float] | None = None,
    ) -> None:
        """Begin rounds anew at ``clock``, after another way of dealing, of what is left of ``plan`` (None: all)."""
        self.global_samples = global_samples
        if shares is not None:
            self._shares = tuple(shares)
        self._plan, self._remainder, self._base = plan, remainder, None
        self._marks = deque([Mark(clock, self._num_trained, global_samples)])
        self._dealt.clear()
        self._ended = (-1, 0)

    def begin(self, plan: int, whole: Remainder) -> Remainder:
        """Return the rest of a plan, of which this worker begins to take rounds in this generation."""
        left = whole if plan >= self._plan else whole.after(len(whole))
        if plan == self._plan and self._remainder is not None:
            left = self._remainder
        self._base = plan, left
        return left

    def dealt(self, plan: int, spans: Sequence[Span], *, ended: int) -> None:
        """Record the samples of the latest round, in the order of ranks; with it ``ended`` are dealt of the plan."""
        self._dealt.append(_Dealt(self._num_drawn - 1, plan, self._drawn[-1].sizes, tuple(spans), ended))

    def left_out(self, plan: int, num_samples: int) -> None:
        """Report the last samples of a plan, which make no round: they are fewer than the workers by now."""
        few = f"fewer than the {self.num_workers} workers of a round"
        self._warn(f"{num_samples} samples of loop {plan} were left out: {few}")

    def mark(self, clock: int, *, settled: int) -> None:
        """Mark this worker's trained samples at the end of step ``clock``; all replicas hold all up to ``settled``."""
        self._marks.append(Mark(clock, self._num_trained, self.global_samples))
        while len(self._marks) > 1 and self._marks[1].clock <= settled:
            self._marks.popleft()
        kept = self._marks[0].rounds
        while self._dealt and self._dealt[0].number < kept:
            dealt = self._dealt.popleft()
            self._ended = dealt.plan, dealt.ended

    def at(self, clock: int) -> Mark:
        """Return this worker's mark at the end of step ``clock``, as far as it is kept."""
        known = [mark for mark in self._marks if mark.clock <= clock]
        return known[-1] if known else self._marks[0]

    def left(self, plan: int, *, clock: int, settled: int, rounds_of: Sequence[int]) -> Unfinished:
        """Return the rest for the next generation.

        Args:
            plan: The common one.
            clock: This worker's, whose replica holds its own steps until then.
            settled: Clock up to which its replica holds the steps of all.
            rounds_of: For each rank of the present generation, the number of rounds whose samples are in a replica.
        """
        mark, settled_rounds = self.at(clock), self.at(settled).rounds
        missing: list[Span] = []
        dropped = unheld = 0
        ended = self._ended[1] if self._ended[0] == plan else 0
        last = max(*rounds_of, mark.rounds)
        for dealt in self._dealt:
            if dealt.number >= last:
                if dealt.plan != plan:  # all had trained on it, and nobody's replica holds it
                    unheld += sum(dealt.sizes)
                continue
            ended = dealt.ended if dealt.plan == plan else ended
            for rank, spans in enumerate(cut(dealt.spans, dealt.sizes)[:-1]):
                if dealt.number < settled_rounds or dealt.number < rounds_of[rank]:
                    continue
                if dealt.plan == plan:
                    missing += spans
                else:
                    dropped += sum(map(len, spans))
        return Unfinished(
            remainder=self._remains(plan, missing, ended=ended),
            samples=mark.global_samples - sum(map(len, missing)) - dropped,
            dropped=dropped + unheld,
        )

    def _remains(self, plan: int, missing: Sequence[Span], *, ended: int) -> Remainder | None:
        """Return the samples of a plan that were dealt and are missing, or were not dealt; None is all of it."""
        if self._base is None or self._base[0] != plan:
            return self._remainder if plan == self._plan else None
        rest = self._base[1].after(ended)
        return replace(rest, spans=(*sorted(missing), *rest.spans))

    def regroup(self, rank: int, num_workers: int, *, generation: int, clock: int, plan: int, left: Unfinished) -> None:
        self.rank, self.num_workers, self.generation = rank, num_workers, generation
        self.global_samples = left.samples
        self._shares = ()
        self._changes.clear()
        self._drawn.clear()
        self._latest = []
        self._num_drawn = self._num_trained = self._taken = 0
        self._plan, self._remainder = plan, left.remainder
        self._marks = deque([Mark(clock, 0, left.samples)])
        self._dealt.clear()
        self._ended, self._base = (-1, 0), None

    def draw_ahead(self, rounds: int) -> None:
        """Let the loader of the loop that begins draw so many rounds before the training gets to them."""
        self._ahead = rounds

    def change(self, shares: Sequence[float]) -> None:
        """Deal in ``shares`` (empty: equal ones) from the first round that no worker can have drawn."""
        self._changes.append((self._num_trained + self._ahead, tuple(shares)))

    def equal_sizes(self, num_samples: int, *, batch_size: int) -> Iterator[list[int]]:
        """Yield the sizes of each round's batches that is dealt of so many samples; too few for a round make none."""
        return round_sizes(num_samples, num_workers=self.num_workers, batch_size=batch_size)

    def draw(self, equal_sizes: Sequence[int]) -> list[int]:
        while self._changes and self._changes[0][0] <= self._num_drawn:
            _, self._shares = self._changes.popleft()
        sizes = divide(sum(equal_sizes), self._shares) if self._shares else list(equal_sizes)
        own, equal = sizes[self.rank], equal_sizes[self.rank]
        self._drawn.append(_Round(own, sum(sizes), equal, tuple(sizes), bool(self._shares)))
        self._num_drawn += 1
        return sizes

    def taken(self, num_samples: int) -> None:
        self._taken += num_samples

    def trained(self, num_samples: int) -> None:
        self._taken -= num_samples
        self._latest = []
        while num_samples > 0 and self._drawn:
            done = self._drawn.popleft()
            self._latest.append(done)
            self._num_trained += 1
            num_samples -= done.own
            self.global_samples += done.of_all

    def abandon(self) -> None:
        """Leave the loop, all ranks together; samples that were drawn and not trained on are dropped."""
        self._num_drawn -= len(self._drawn)
        self._drawn.clear()
        self._latest = []
        self._taken = 0

    def _at_hand(self) -> list[_Round]:
        """Return the rounds of the step under way; when it has been trained on, still those."""
        if self._taken <= 0:
            return self._latest
        rounds, left = [], self._taken
        for one in self._drawn:
            if left <= 0:
                break
            rounds.append(one)
            left -= one.own
        return rounds

    def weight(self, ranks: Sequence[int] | None = None) -> float:
        """Return the factor of this rank's gradient before the mean over some of the ranks, or all, is taken.

        It is 1 while shares are equal.
        """
        rounds = self._at_hand()
        if not any(one.in_shares for one in rounds):
            return 1.0
        among = range(self.num_workers) if ranks is None else ranks
        return sum(one.own for one in rounds) * len(among) / sum(one.sizes[rank] for one in rounds for rank in among)

    @property
    def relative_size(self) -> float:
        """Samples at hand over those that equal shares would have given."""
        rounds = self._at_hand()
        equal = sum(one.equal for one in rounds)
        return sum(one.own for one in rounds) / equal if equal else 1.0
