"""How the mean of replicas is made and merged: of their parameters, or of their deltas.

Both take a copy of the replica, have it averaged over the ranks, and add what was found, *mean - own*, to what the
replica has become meanwhile; without steps since, the replica becomes the mean, equal on all ranks to the bit.

**Of parameters**: all of them are sent.

**Of deltas** (Basu et al. 2019, "Qsparse-local-SGD"): every rank keeps the *base*, the last mean, the same on all ranks
to the bit; it sends its own x - base, in full or what a `CompressedReducer` makes of it, and an `OuterStep` made of the
mean is added to the base; the plain one is the mean itself.

    delta = x - base,     step = outer(reducer's mean),     base <- base + step,     x <- x + step - delta

The rest of a delta stays in the reducer's residual and is sent later; the replica goes back by it, as by all of its own
that is not in the mean. With weights w of the ranks, ``Σ w x = base + Σ w delta``, so nothing depends on the base but
rounding, and how far the codec's zero is from x.

**Where the base is what workers share** (DiLoCo), and not a mean of theirs that was, a replica that has made steps
since goes towards it, ``x <- α x + (1 - α) base``, and any other becomes it. By *radial-directional averaging*
(``rda``) the mean of the deltas is made of two, tensor by tensor: of their lengths, and of their directions.

    r = Σ w |delta|,     u = Σ w delta / |delta|,     mean = r u / |u|

A mean delta that is not finite is refused: it counts as zero, so that all ranks go back to the base, less what was
trained since; a rank whose own delta was not finite, to the base itself.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plesio.policies.policy import MergeKind
from plesio.runtime.worker.compression import CompressedReducer, PendingMean
from plesio.runtime.worker.exchange.flat import flat_of, parts_of
from plesio.runtime.worker.exchange.group import Summing, Work
from plesio.runtime.worker.exchange.island_parts import Holders
from plesio.runtime.worker.exchange.outer_step import OuterStep
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.exchange.replica import all_finite

Named = tuple[str, Tensor]
Met = Callable[[Sequence[Named], Tensor], None]


class ParameterMean:
    """The mean of the tensors themselves."""

    kept_back = False
    refused = False
    sent_finite = True

    def __init__(self, named: Sequence[Named], *, group: Summing) -> None:
        self.named = named
        self.tensors = [tensor for _, tensor in named]
        self._group = group
        self._under_way: tuple[Tensor, Tensor, Work] | None = None
        """The tensor that was sent, the tensor that becomes the sum, and the collective under way."""

    def start(self, *, clock: int, num_steps: int, share: float, in_full: bool) -> None:
        """Begin the mean of the tensors as they are now.

        The ranks' shares add up to their number.
        """
        sent = flat_of(self.tensors)
        total = sent * share
        self._under_way = sent, total, self._group.all_reduce(total)

    def go_on(self) -> None:
        """Do nothing: it is made of one collective."""

    def wait(self) -> float:
        assert self._under_way is not None, "begun"
        _, _, work = self._under_way
        work.wait()
        return work.took_s()

    def merge(self, *, stepped: bool) -> Tensor:
        """Merge it, and return it, flat; the tensors have changed since it was begun if ``stepped``."""
        assert self._under_way is not None, "begun"
        (sent, total, _), self._under_way = self._under_way, None
        mean = total.div_(self._group.size)  # sum, then divide
        before_after = parts_of(sent, self.tensors), parts_of(mean, self.tensors)
        for tensor, before, after in zip(self.tensors, *before_after, strict=True):
            if stepped:
                tensor.add_(after - before)
            else:
                tensor.copy_(after)
        return mean

    def shared(self) -> Tensor:
        """Return the mean of the tensors as they are now, flat; they stay. A collective of its own."""
        return _mean_now(self.tensors, self._group)


class JoinedReducers:
    """Several reducers as one: parts of a flat tensor are compressed each by itself, and a mean is refused as a whole.

    Args:
        parts: At least one, all for one compression.
    """

    def __init__(self, parts: Sequence[CompressedReducer | RackReducer], sizes: Sequence[int]) -> None:
        self._reducers, self._sizes = parts, list(sizes)
        self.compression = parts[0].compression

    @torch.no_grad()
    def begin(self, flat: Tensor, clock: int, *, weight: float, in_full: bool = False) -> PendingMean:
        """Begin the mean of all ranks' ``flat`` tensors; as `CompressedReducer.begin`."""
        if len(self._reducers) == 1:  # it looks at them itself, and nothing is put together
            return self._reducers[0].begin(flat, clock, weight=weight, in_full=in_full)
        sent = flat if all_finite([flat]) else torch.full_like(flat, torch.nan)
        cut = zip(self._reducers, torch.split(sent, self._sizes), strict=True)
        pending = [reducer.begin(part, clock, weight=weight, in_full=in_full) for reducer, part in cut]

        def took_s() -> float | None:
            known_s = [each_s for one in pending if (each_s := one.took_s()) is not None]
            return max(known_s) if len(known_s) == len(pending) else None  # all were begun together

        def go_on() -> None:
            for one in pending:
                one.go_on()

        return PendingMean(lambda: torch.cat([one.wait() for one in pending]), took_s=took_s, go_on=go_on)


class DeltaMean:
    """The mean of how far the tensors have come since the last one.

    Args:
        named: Tensors of one dtype, equal on all ranks; of an island its rank's part.
        reducer: Made for their shapes; None sends all of a delta.
        outer: Makes a step of the mean; None: it is the mean.
        own_share: α, where the base is what workers share; None where it is a mean of theirs.
        met: Called with the tensors and the mean delta, flat, before anything becomes of it; not where it is refused.
        holders: An island's ranks, each with its part of the tensors, refuse a mean together.
    """

    def __init__(
        self,
        named: Sequence[Named],
        *,
        reducer: JoinedReducers | None,
        outer: OuterStep | None,
        own_share: float | None,
        averages: MergeKind,
        group: Summing,
        met: Met,
        holders: Holders | None = None,
    ) -> None:
        self.named, self._holders = named, holders
        self.tensors = [tensor for _, tensor in named]
        self.kept_back = False
        self.refused = False
        """True if the last mean was not finite and refused; the same on all ranks."""
        self.sent_finite = True
        """True if this rank's contribution to the last mean was finite."""
        self.begin()
        self._reducer, self._outer, self._own_share = reducer, outer, own_share
        self._lengths = _Lengths(named, group=group, holders=holders) if averages == "rda" else None
        self._met = met
        self._num_steps = 0
        self._group = group
        self._own = self._mean = torch.empty(0)
        self._pending: PendingMean | None = None

    def begin(self) -> None:
        """Count from the tensors as they are now."""
        self.base = flat_of(self.tensors)
        """The last mean, or what outer steps have made."""

    def start(self, *, clock: int, num_steps: int, share: float, in_full: bool) -> None:
        self._num_steps = num_steps
        self._own = flat_of(self.tensors).sub_(self.base)
        weight = share / self._group.size
        sent = self._own if self._lengths is None else self._lengths.begin(self._own, weight=weight)
        if self._reducer is None:
            total = sent * weight
            work = self._group.all_reduce(total)
            self._pending = PendingMean(lambda: (work.wait(), total)[1], took_s=work.took_s)
        else:
            self._pending = self._reducer.begin(sent, clock, weight=weight, in_full=in_full)
            self.kept_back = self._reducer.compression.keeps_residual and not in_full

    def go_on(self) -> None:
        assert self._pending is not None, "begun"
        self._pending.go_on()

    def wait(self) -> float | None:
        assert self._pending is not None, "begun"
        pending, self._pending = self._pending, None
        self._mean = pending.wait()
        if self._lengths is not None:
            self._mean = self._lengths.given_to(self._mean)
        return pending.took_s()

    def merge(self, *, stepped: bool) -> Tensor:
        """Merge it, unless it is not finite, which all ranks see alike; return the base."""
        self.refused = not self._finite(self._mean)
        self.sent_finite = not self.refused or self._finite(self._own)
        if self.refused:
            self._mean.zero_()
        else:
            self._met(self.named, self._mean)
            if self._outer is not None:
                self._mean = self._outer.step(self._mean, num_steps=self._num_steps)
            self.base.add_(self._mean)
        bases = parts_of(self.base, self.tensors)
        corrections = parts_of(self._mean.sub_(self._own), self.tensors)
        for tensor, base, correction in zip(self.tensors, bases, corrections, strict=True):
            if self._own_share == 0 or not (stepped and self.sent_finite):
                tensor.copy_(base)
            elif self._own_share is None:
                tensor.add_(correction)
            else:
                tensor.mul_(self._own_share).add_(base * (1 - self._own_share))
        self._own = self._mean = torch.empty(0)
        return self.base

    def _finite(self, part: Tensor) -> bool:
        finite = all_finite([part])
        return finite if self._holders is None else self._holders.island.all_agree(finite)

    def shared(self) -> Tensor:
        """Return what workers share now, flat: the base, or the mean of theirs by a collective of its own."""
        return _mean_now(self.tensors, self._group) if self._own_share is None else self.base


class _Lengths:
    """The mean of deltas' lengths, tensor by tensor, where their directions are averaged apart from them.

    A length is the whole tensor's, of which an island's rank has a part.
    """

    def __init__(self, named: Sequence[Named], *, group: Summing, holders: Holders | None) -> None:
        self._tensors, self._group, self._holders = [tensor for _, tensor in named], group, holders
        self._num_alike = [1 if holders is None else holders.num_alike(name) for name, _ in named]
        self._mean: tuple[Tensor, Work] | None = None

    def begin(self, delta: Tensor, *, weight: float) -> Tensor:
        """Begin the mean of the lengths, and return the directions; a tensor that has not moved has none."""
        lengths = self._of(delta)
        mean = lengths * weight
        self._mean = mean, self._group.all_reduce(mean)
        # divided, so that directions of one number are 1 and -1 and may cancel out
        parts = zip(parts_of(delta, self._tensors), torch.where(lengths == 0, 1, lengths), strict=True)
        return torch.cat([(part / length).reshape(-1) for part, length in parts])

    def given_to(self, directions: Tensor) -> Tensor:
        """Return the mean directions in the mean lengths."""
        assert self._mean is not None, "begun"
        (mean, work), self._mean = self._mean, None
        work.wait()
        lengths = self._of(directions)
        factors = mean / torch.where(lengths == 0, 1, lengths)
        parts = zip(parts_of(directions, self._tensors), factors, strict=True)
        return torch.cat([(part * factor).reshape(-1) for part, factor in parts])

    def _of(self, flat: Tensor) -> Tensor:
        lengths = torch.stack([torch.linalg.vector_norm(part) for part in parts_of(flat, self._tensors)])
        if self._holders is None:
            return lengths
        squares = lengths.double().square() / torch.tensor(self._num_alike, device=flat.device)
        return self._holders.island.summed(squares).sqrt().to(flat.dtype)


def _mean_now(tensors: Sequence[Tensor], group: Summing) -> Tensor:
    flat = flat_of(tensors)
    group.all_reduce(flat).wait()
    return flat.div_(group.size)


ReplicaMean = ParameterMean | DeltaMean
"""The mean of some tensors of one dtype; one at a time is under way."""
