"""Gradients in buckets, all-reduced one after another behind a backward pass: a recurrence, and the best buckets.

Theory. Layers become ready one after another while the backward pass goes on, the last layer of the model first. A
bucket holds consecutive layers and is ready when its last one is; one stream takes the buckets in this order (Li et al.
2020, section 3.2), so with T the time of an all-reduce

    start_j = max(ready_j, end_{j-1})        end_j = start_j + T(bytes_j)

To end earlier never makes a later bucket end later. So the best way to put the first i layers into buckets, f(i), is
made of best ways for fewer layers, ``f(i) = min over k < i of max(ready_i, f(k)) + T(bytes k to i)``: dynamic
programming over all 2^(L-1) ways in L² steps.

Where only the size of a gradient is known, `ddp_exposed_s` has it become ready evenly over the backward pass.

`buckets_of_bytes` fills as PyTorch does: a bucket is closed when it has reached its limit, so it may be one layer
larger. Two limits fill alike if no sum of consecutive layers is between them: those sums are all that one has to try.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

AllReduce = Callable[[float], float]
"""Seconds of an all-reduce of so many bytes."""

DDP_CAP_BYTES = 25 * 2.0**20
"""PyTorch's default, ``bucket_cap_mb=25``."""
DDP_FIRST_CAP_BYTES = 2.0**20
"""The first bucket is closed after 1 MiB by default, so that communication begins early."""
_MOST_CAPS = 2000
_ROUNDING = 1e-9
"""Sums of bytes that differ by less, relatively, are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers in the order in which their gradients become ready: the last layer of the model first.

    Attributes:
        seconds: Seconds of each layer's backward pass.
        bytes: Bytes of its gradient.
    """

    seconds: tuple[float, ...]
    bytes: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.seconds) == len(self.bytes) > 0

    def __len__(self) -> int:
        return len(self.bytes)

    @property
    def backward_s(self) -> float:
        """Seconds of the backward pass."""
        return self.ready_s[-1]

    @property
    def ready_s(self) -> tuple[float, ...]:
        """When each gradient is there."""
        return tuple(accumulate(self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucketing:
    """One way to put layers into buckets, and what comes of it.

    Attributes:
        bytes: Bytes of each bucket.
        start_s: When its all-reduce begins.
        ends_s: When its all-reduce ends.
        backward_s: When the backward pass ends.
    """

    bytes: tuple[float, ...]
    start_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    backward_s: float

    @property
    def end_s(self) -> float:
        """When all gradients are added up."""
        return self.ends_s[-1]

    @property
    def exposed_s(self) -> float:
        """Seconds from the end of the backward pass until then."""
        return self.end_s - self.backward_s

    @property
    def all_reduces_s(self) -> float:
        """Seconds of all all-reduces together."""
        return sum(end_s - start_s for start_s, end_s in zip(self.start_s, self.ends_s, strict=True))

    @property
    def hidden_share(self) -> float:
        """Share of them that the backward pass hides: the overlap's efficiency."""
        return 1 - self.exposed_s / self.all_reduces_s if self.all_reduces_s else 1.0

    @property
    def largest_bytes(self) -> float:
        """The largest bucket."""
        return max(self.bytes)


def buckets_of_layers(layers: Layers, count: int, all_reduce_s: AllReduce) -> Bucketing:
    """Return buckets of ``count`` layers, the last of which may have fewer.

    >>> layers = Layers(seconds=(1.0, 1.0, 1.0), bytes=(10.0, 10.0, 10.0))
    >>> buckets_of_layers(layers, 2, lambda num_bytes: num_bytes / 10).ends_s
    (4.0, 5.0)
    """
    return _buckets(layers, [*range(count, len(layers), count), len(layers)], all_reduce_s)


def buckets_of_bytes(
    layers: Layers, cap_bytes: float, all_reduce_s: AllReduce, *, first_cap_bytes: float | None = None
) -> Bucketing:
    """Buckets that are closed when they have ``cap_bytes``, the first of them when it has ``first_cap_bytes``."""
    ends, filled, cap = [], 0.0, cap_bytes if first_cap_bytes is None else first_cap_bytes
    for place, num_bytes in enumerate(layers.bytes, start=1):
        filled += num_bytes
        if filled >= cap * (1 - _ROUNDING) or place == len(layers):
            ends.append(place)
            filled, cap = 0.0, cap_bytes
    return _buckets(layers, ends, all_reduce_s)


def ddp_buckets(layers: Layers, all_reduce_s: AllReduce) -> Bucketing:
    """Return buckets as PyTorch's DistributedDataParallel fills them by default: the first 1 MiB, the others 25 MiB."""
    return buckets_of_bytes(layers, DDP_CAP_BYTES, all_reduce_s, first_cap_bytes=DDP_FIRST_CAP_BYTES)


def ddp_exposed_s(num_bytes: float, *, backward_s: float, all_reduce_s: AllReduce) -> float:
    """Return the seconds from the end of a backward pass until DDP has added up a gradient of ``num_bytes``.

    It becomes ready evenly over the ``backward_s`` of the pass, in parts of the size of DDP's first bucket.

    >>> round(ddp_exposed_s(10 * 2**20, backward_s=0.0, all_reduce_s=lambda num_bytes: 0.1 + num_bytes / 2**20), 1)
    10.2
    >>> round(ddp_exposed_s(10 * 2**20, backward_s=5.0, all_reduce_s=lambda num_bytes: num_bytes / 2**20), 1)
    9.0
    """
    whole, rest = divmod(num_bytes, DDP_FIRST_CAP_BYTES)
    parts = (*((DDP_FIRST_CAP_BYTES,) * int(whole)), *((rest,) if rest or not whole else ()))
    seconds = tuple(backward_s * part / num_bytes if num_bytes else 0.0 for part in parts)
    return ddp_buckets(Layers(seconds=seconds, bytes=parts), all_reduce_s).exposed_s


def best_buckets(layers: Layers, all_reduce_s: AllReduce) -> Bucketing:
    """Find the buckets, of any consecutive layers, with which all gradients are added up first.

    >>> layers = Layers(seconds=(1.0, 1.0, 1.0), bytes=(10.0, 10.0, 10.0))
    >>> best_buckets(layers, lambda num_bytes: 0.5 + num_bytes / 20).ends_s
    (2.0, 3.0, 4.0)
    """
    ready_s, durations_s = layers.ready_s, _durations(layers, all_reduce_s)
    added_s, begins = np.zeros(len(layers) + 1), np.zeros(len(layers) + 1, int)
    for end in range(1, len(layers) + 1):
        possible_s = np.maximum(ready_s[end - 1], added_s[:end]) + durations_s[:end, end]
        begins[end] = possible_s.argmin()
        added_s[end] = possible_s[begins[end]]
    ends = [len(layers)]
    while (begin := int(begins[ends[-1]])) > 0:
        ends.append(begin)
    return _buckets(layers, ends[::-1], all_reduce_s)


def best_cap_bytes(layers: Layers, all_reduce_s: AllReduce) -> float:
    """Find the limit of a bucket's bytes with which all gradients are added up first; the smallest of several."""
    caps = caps_bytes(layers, most=_MOST_CAPS)
    sums, durations_s = np.concatenate([[0.0], np.cumsum(layers.bytes)]), _durations(layers, all_reduce_s)
    begins, free_s = np.zeros(len(caps), int), np.zeros(len(caps))
    for end, ready_s in enumerate(layers.ready_s, start=1):
        closed = (sums[end] - sums[begins] >= caps * (1 - _ROUNDING)) | (end == len(layers))
        free_s = np.where(closed, np.maximum(ready_s, free_s) + durations_s[begins, end], free_s)
        begins[closed] = end
    return float(caps[np.flatnonzero(free_s <= free_s.min() * (1 + _ROUNDING))[0]])


def caps_bytes(layers: Layers, *, most: int) -> NDArray[np.float64]:
    """Return the limits that fill buckets differently, rising; ``most`` of them, spread evenly, if there are more."""
    sums = np.concatenate([[0.0], np.cumsum(layers.bytes)])
    consecutive = np.sort((sums[None, :] - sums[:, None])[np.triu_indices(len(sums), 1)])
    apart = np.diff(consecutive, prepend=-1.0) > _ROUNDING * sums[-1]
    distinct: NDArray[np.float64] = consecutive[apart]
    if len(distinct) <= most:
        return distinct
    some: NDArray[np.float64] = distinct[np.linspace(0, len(distinct) - 1, most).astype(int)]
    return some


def _buckets(layers: Layers, ends: Sequence[int], all_reduce_s: AllReduce) -> Bucketing:
    ready_s = layers.ready_s
    sizes, starts_s, ends_s = [], [], [0.0]
    for begin, end in pairwise([0, *ends]):
        sizes.append(sum(layers.bytes[begin:end]))
        starts_s.append(max(ready_s[end - 1], ends_s[-1]))
        ends_s.append(starts_s[-1] + all_reduce_s(sizes[-1]))
    return Bucketing(
        bytes=tuple(sizes), start_s=tuple(starts_s), ends_s=tuple(ends_s[1:]), backward_s=layers.backward_s
    )


def _durations(layers: Layers, all_reduce_s: AllReduce) -> NDArray[np.float64]:
    """Return the seconds of an all-reduce of layers ``begin`` to ``end``, by both."""
    sums = [0.0, *accumulate(layers.bytes)]
    durations_s = np.zeros((len(sums), len(sums)))
    for begin in range(len(layers)):
        for end in range(begin + 1, len(sums)):
            durations_s[begin, end] = all_reduce_s(sums[end] - sums[begin])
    return durations_s
