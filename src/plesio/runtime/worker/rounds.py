"""The rounds of a synchronous plan on this rank: in which shares they are dealt, which batch is at hand, what is done.

Every rank computes every round by itself, so nothing but the shares has to travel, and these must change at the same
round everywhere. A loader with workers of its own draws rounds ahead of the training; so a change holds from the first
round that no rank can have drawn yet (`RoundRecords.draw_ahead` rounds after the last one trained on).

A step's gradient is the mean over a rank's own batch. Where batches are of unequal size, the mean over the whole round
is ``sum(n_i g_i) / sum(n_i)``: `RoundRecords.weight` is ``n_i N / sum(n_i)``, by which a rank's gradient is multiplied
before the mean over the N ranks is taken.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RoundRecords", "divide"]


def divide(total: int, shares: Sequence[float]) -> list[int]:
    """``total`` in whole parts, none of them empty, so that the largest part over its share is as small as can be.

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


@dataclass(frozen=True, slots=True)
class _Round:
    own: int
    of_all: int
    equal: int
    """Samples that this rank would have with equal shares."""
    sizes: tuple[int, ...]
    """By rank."""
    in_shares: bool


class RoundRecords:
    """Of one rank, for all plans of a run.

    Args:
        rank: Whose.
        num_workers: Ranks that share the samples.
    """

    def __init__(self, rank: int, num_workers: int) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self._ahead = 0
        """Rounds that a loader may draw before the training gets to them."""
        self._global_samples = 0
        self._shares: tuple[float, ...] = ()
        self._changes: deque[tuple[int, tuple[float, ...]]] = deque()
        self._drawn: deque[_Round] = deque()
        self._latest: list[_Round] = []
        """Of the last step."""
        self._num_drawn = 0
        self._num_trained = 0
        self._taken = 0
        """Samples of this rank that the training loop has been given and has made no step of."""

    @property
    def global_samples(self) -> int:
        """Samples of all ranks that have been trained on."""
        return self._global_samples

    def go_on_from(self, global_samples: int, *, shares: Sequence[float] | None = None) -> None:
        """So many samples have been trained on when rounds begin anew, in ``shares`` if these are given."""
        self._global_samples = global_samples
        if shares is not None:
            self._shares = tuple(shares)

    def draw_ahead(self, rounds: int) -> None:
        """The loader of the loop that begins may draw so many rounds before the training gets to them."""
        self._ahead = rounds

    def change(self, shares: Sequence[float]) -> None:
        """Deal in ``shares`` (empty: equal ones) from the first round that nobody can have drawn."""
        self._changes.append((self._num_trained + self._ahead, tuple(shares)))

    def draw(self, equal_sizes: Sequence[int]) -> list[int]:
        """The sizes of the next round's batches, by rank."""
        while self._changes and self._changes[0][0] <= self._num_drawn:
            _, self._shares = self._changes.popleft()
        sizes = divide(sum(equal_sizes), self._shares) if self._shares else list(equal_sizes)
        own, equal = sizes[self.rank], equal_sizes[self.rank]
        self._drawn.append(_Round(own, sum(sizes), equal, tuple(sizes), bool(self._shares)))
        self._num_drawn += 1
        return sizes

    def taken(self, num_samples: int) -> None:
        """The training loop has been given a batch."""
        self._taken += num_samples

    def trained(self, num_samples: int) -> None:
        """A step on the next ``num_samples`` samples is done."""
        self._taken -= num_samples
        self._latest = []
        while num_samples > 0 and self._drawn:
            done = self._drawn.popleft()
            self._latest.append(done)
            self._num_trained += 1
            num_samples -= done.own
            self._global_samples += done.of_all

    def abandon(self) -> None:
        """The loop is left, by all ranks together; what was drawn and not trained on is nobody's."""
        self._num_drawn -= len(self._drawn)
        self._drawn.clear()
        self._latest = []
        self._taken = 0

    def _at_hand(self) -> list[_Round]:
        """The rounds of the step under way; when it has been trained on, still those."""
        if self._taken <= 0:
            return self._latest
        rounds, left = [], self._taken
        for one in self._drawn:
            if left <= 0:
                break
            rounds.append(one)
            left -= one.own
        return rounds

    @property
    def weight(self) -> float:
        """What this rank's gradient is multiplied by before the mean over the ranks; 1 while shares are equal."""
        rounds = self._at_hand()
        if not any(one.in_shares for one in rounds):
            return 1.0
        return sum(one.own for one in rounds) * self.num_workers / sum(one.of_all for one in rounds)

    def weight_among(self, ranks: Sequence[int]) -> float:
        """The same before the mean over some of the ranks, of whom this is one."""
        rounds = self._at_hand()
        if not any(one.in_shares for one in rounds):
            return 1.0
        of_them = sum(one.sizes[rank] for one in rounds for rank in ranks)
        return sum(one.own for one in rounds) * len(ranks) / of_them

    @property
    def relative_size(self) -> float:
        """Samples at hand over those that equal shares would have given."""
        rounds = self._at_hand()
        equal = sum(one.equal for one in rounds)
        return sum(one.own for one in rounds) / equal if equal else 1.0
