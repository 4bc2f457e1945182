"""How much of a gradient's all-reduce can be hidden behind the backward pass, and in buckets of which size.

The theory is in `plesio.cost.buckets`: layers become ready one after another, and buckets are all-reduced in that order
on one stream (Li et al. 2020, section 3.2). For equal layers, with t seconds and g bytes each, and a ring of n ranks,
buckets of k layers keep up with the backward pass if

    k t >= 2(n-1)(α + k g/(nB)),      that is      k >= 2(n-1)α / (t - 2(n-1)/n g/B)

The smallest such k is the knee of the curve and the best: from there on only the last bucket is exposed.

``docs/planning/studies/overlap.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, get_args

from plesio.core.charts import Axis, Chart, LineChart, Table, Timeline, TimelineBar
from plesio.core.units import counted, format_bandwidth, format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION, DURATION_OR_0, SIZE, Within
from plesio.cost.buckets import (
    DDP_CAP_BYTES,
    AllReduce,
    Bucketing,
    Layers,
    best_buckets,
    best_cap_bytes,
    buckets_of_bytes,
    buckets_of_layers,
    caps_bytes,
    ddp_buckets,
)
from plesio.cost.collectives import ALL_REDUCES
from plesio.cost.link import Link
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.study import Answer

Shape = Literal["equal", "tapered", "embedding"]

_MOST_LAYERS = 300
_MOST_POINTS = 100
"""Points of the curve."""
_BUCKET_KINDS = ("buckets 1, 3, 5 ...", "buckets 2, 4, 6 ...")
_BANDWIDTH_FACTORS = tuple(2 ** (step / 2) for step in range(-8, 9))
_EMBEDDING_SHARE = 0.3
_SAME = 1e-3
"""Times that differ by less, as a share, are the same in words."""
_TAPER = 64.0
"""Bytes of the layer that is ready first, over those of the layer that is ready last."""


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """The best bucket at another bandwidth.

    Attributes:
        best_cap_bytes: The best limit of a bucket's bytes.
        best_exposed_s: Seconds exposed with it.
        default_exposed_s: Seconds exposed with PyTorch's default.
        whole_exposed_s: Seconds exposed with one bucket.
    """

    bytes_per_s: float
    best_cap_bytes: float
    best_exposed_s: float
    default_exposed_s: float
    whole_exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap(Answer):
    """How long it takes from the backward pass's begin until all gradients are added up.

    Attributes:
        layers: Times and bytes.
        by_layers: Buckets of so many layers.
        by_cap: Buckets of so many bytes, by their limit.
        best_layers: The number of layers in a bucket that is the fastest.
        best_cap_bytes: The limit of a bucket's bytes that is the fastest.
        best: Buckets of that limit.
        optimum: The fastest of all ways to put consecutive layers into buckets.
        default: PyTorch's default.
        whole: One bucket.
        hidden_entirely_s: Seconds if all could be hidden: the longer of backward pass and one all-reduce.
        least_s: Seconds that no buckets can go below: the backward pass and the all-reduce of the last layer ready.
        by_shape: Best, default and whole buckets for each shape of a model of this size and these times.
        by_bandwidth: The best bucket at other bandwidths.
    """

    unit: ClassVar[str] = "s"
    layers: Layers
    by_layers: Mapping[int, Bucketing]
    by_cap: Mapping[float, Bucketing]
    best_layers: int
    best_cap_bytes: float
    best: Bucketing
    optimum: Bucketing
    default: Bucketing
    whole: Bucketing
    hidden_entirely_s: float
    least_s: float
    by_shape: Mapping[str, tuple[Bucketing, Bucketing, Bucketing]]
    by_bandwidth: tuple[BandwidthPoint, ...]

    @property
    def finding(self) -> str:
        """The best limit, what it hides, what no limit can reach, and what PyTorch's default would."""
        return (
            f"Of buckets with one limit, those of {format_bytes(self.best_cap_bytes)} are the fastest: "
            f"{format_seconds(self.total)} from the "
            f"backward pass's begin until all is added up, {100 * self.best.hidden_share:.1f} % of the communication "
            f"hidden and {format_seconds(self.best.exposed_s)} exposed; {self._beyond_one_limit()}. "
            f"{format_seconds(self.whole.exposed_s)} are exposed with "
            f"one bucket, {format_seconds(self.default.exposed_s)} with PyTorch's default of 25 MiB, and "
            f"{format_seconds(self.least_s - self.layers.backward_s)} at least, whatever the buckets."
        )

    def _beyond_one_limit(self) -> str:
        """Write half a sentence: whether buckets of different sizes are faster."""
        if self.optimum.end_s >= (1 - _SAME) * self.total:
            return "buckets of different sizes are no faster"
        return (
            f"{counted(len(self.optimum.bytes), 'bucket')} of different sizes, up to "
            f"{format_bytes(self.optimum.largest_bytes)}, take {format_seconds(self.optimum.end_s)}"
        )

    @property
    def total(self) -> float:
        """Seconds with the best limit."""
        return self.best.end_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The backward pass, and what is exposed after it."""
        return {"backward": self.layers.backward_s, "exposed all-reduce": self.best.exposed_s}

    def tables(self) -> Sequence[Table]:
        """List some buckets beside the bounds, shapes of models, and bandwidths."""
        return [self._buckets(), self._shapes(), self._bandwidths()]

    def _buckets(self) -> Table:
        powers = [1 << power for power in range(len(self.layers).bit_length())]
        counts = sorted({*(count for count in powers if count in self.by_layers), self.best_layers})
        named = {
            **{_layers(count): self.by_layers[count] for count in counts},
            f"up to {format_bytes(self.best_cap_bytes)}, the best limit": self.best,
            "the best of different sizes": self.optimum,
            "PyTorch's default, 25 MiB": self.default,
            "one bucket: nothing hidden": self.whole,
        }
        rows = [_row(name, buckets) for name, buckets in named.items()]
        rows.append(("all hidden: the longer of both", "–", "–", format_seconds(self.hidden_entirely_s), "–", "–"))
        headers = ("buckets", "number", "all-reduces", "until added up", "exposed", "hidden")
        return Table(title="By size of a bucket:", headers=headers, rows=rows)

    def _shapes(self) -> Table:
        rows = [
            (
                shape,
                format_bytes(best.largest_bytes),
                *(format_seconds(each.exposed_s) for each in (best, default, whole)),
                f"{100 * best.hidden_share:.1f} %",
            )
            for shape, (best, default, whole) in self.by_shape.items()
        ]
        headers = ("layers", "best, largest bucket", "exposed", "exposed by default", "by one bucket", "hidden by best")
        return Table(title="By shape of the model:", headers=headers, rows=rows)

    def _bandwidths(self) -> Table:
        rows = [
            (
                format_bandwidth(point.bytes_per_s),
                format_bytes(point.best_cap_bytes),
                format_seconds(point.best_exposed_s),
                format_seconds(point.default_exposed_s),
                format_seconds(point.whole_exposed_s),
            )
            for point in self.by_bandwidth[::2]
        ]
        headers = ("bandwidth", "best limit", "exposed", "exposed by default", "by one bucket")
        return Table(title="By bandwidth:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw the U-curve, the hidden share, three timelines, and the best bucket by bandwidth."""
        return [self._curve(), self._hidden(), self._timeline(), self._bandwidth_chart()]

    def _curve(self) -> LineChart:
        caps_mb = [cap / 1e6 for cap in self.by_cap]
        bounds = {
            "nothing hidden: one bucket": [1e3 * self.whole.end_s] * 2,
            "all hidden": [1e3 * self.hidden_entirely_s] * 2,
            "the best of different sizes": [1e3 * self.optimum.end_s] * 2,
        }
        return LineChart(
            slug="bucket-size",
            title=f"Of one limit for all buckets {format_bytes(self.best_cap_bytes)} is the fastest: "
            f"{format_seconds(self.total)}",
            caption="Time from the backward pass's begin until all gradients are added up, by size of a bucket.",
            x=Axis(title="limit of a bucket (MB)", log=True),
            y=Axis(title="time (ms)"),
            series=[
                *lines_of(caps_mb, {"buckets": [1e3 * each.end_s for each in self.by_cap.values()]}),
                *lines_of((caps_mb[0], caps_mb[-1]), dashed=bounds),
            ],
            marks={"best": self.best_cap_bytes / 1e6, "PyTorch's default": DDP_CAP_BYTES / 1e6},
        )

    def _hidden(self) -> LineChart:
        all_reduces = [100 * each.all_reduces_s / self.layers.backward_s for each in self.by_cap.values()]
        return LineChart(
            slug="hidden",
            title=f"{100 * self.best.hidden_share:.0f} % of the communication can be hidden",
            caption="Share of all all-reduces' time that is hidden behind the backward pass, by size of a bucket; and "
            "the time that the all-reduces take, as a share of the backward pass.",
            x=Axis(title="limit of a bucket (MB)", log=True),
            y=Axis(title="share (%)"),
            series=lines_of(
                (cap / 1e6 for cap in self.by_cap),
                {"hidden": [100 * each.hidden_share for each in self.by_cap.values()]},
                dashed={"all-reduces, of the backward pass": all_reduces},
            ),
        )

    def _timeline(self) -> Timeline:
        shown = {
            "each layer": self.by_layers[1],
            f"{format_bytes(self.best_cap_bytes)}": self.best,
            "PyTorch's default": self.default,
            "one bucket": self.whole,
        }
        most_s, spans = max(buckets.exposed_s for buckets in shown.values()), []
        for place, buckets in enumerate(shown.values()):
            spans.append(TimelineBar(2 * place, 0.0, 1e3 * self.layers.backward_s, "backward pass"))
            spans += [
                TimelineBar(2 * place + 1, 1e3 * start_s, 1e3 * end_s, _BUCKET_KINDS[number % 2])
                for number, (start_s, end_s) in enumerate(zip(buckets.start_s, buckets.ends_s, strict=True))
            ]
        return Timeline(
            slug="timeline",
            title=f"Buckets of the best limit expose {format_seconds(self.best.exposed_s)}, the worst of these "
            f"{format_seconds(most_s)}",
            caption="The backward pass, and the stream that all-reduces: by layer, with the best limit, with "
            "PyTorch's default, and with one bucket.",
            axis=Axis(title="time (ms)"),
            rows=[name for buckets in shown for name in (f"{buckets}: backward", "stream")],
            spans=spans,
        )

    def _bandwidth_chart(self) -> LineChart:
        gb_per_s = [point.bytes_per_s / 1e9 for point in self.by_bandwidth]
        slow, fast = self.by_bandwidth[0], self.by_bandwidth[-1]
        exposed_ms = {
            "best limit": [1e3 * point.best_exposed_s for point in self.by_bandwidth],
            "PyTorch's default": [1e3 * point.default_exposed_s for point in self.by_bandwidth],
            "one bucket": [1e3 * point.whole_exposed_s for point in self.by_bandwidth],
        }
        return LineChart(
            slug="bandwidth",
            title=f"With the best limit {format_seconds(slow.best_exposed_s)} are exposed at "
            f"{format_bandwidth(slow.bytes_per_s)}, {format_seconds(fast.best_exposed_s)} at "
            f"{format_bandwidth(fast.bytes_per_s)}",
            caption="Exposed communication by bandwidth, with the best limit of each.",
            x=Axis(title="bandwidth (GB/s)", log=True),
            y=Axis(title="exposed (ms)", log=True),
            series=lines_of(gb_per_s, exposed_ms),
        )


def _layers(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''} each"


def _row(name: str, buckets: Bucketing) -> tuple[str, ...]:
    return (
        name,
        str(len(buckets.bytes)),
        format_seconds(buckets.all_reduces_s),
        format_seconds(buckets.end_s),
        format_seconds(buckets.exposed_s),
        f"{100 * buckets.hidden_share:.1f} %",
    )


def overlap(
    *,
    num_layers: Annotated[int, Within(1, _MOST_LAYERS)] = 96,
    backward_s: Annotated[float, DURATION] = 0.480,
    gradient_bytes: Annotated[float, SIZE] = 700e6,
    profile: Shape = "equal",
    num_workers: Annotated[int, Within(1, 2**20)] = 256,
    bytes_per_s: Annotated[float, BANDWIDTH] = 25e9,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
    algorithm: Literal["ring", "halving-doubling", "double tree", "tree"] = "ring",
) -> Overlap:
    """Compute the time until all gradients are added up, by size of a bucket, and the best size.

    >>> answer = overlap()
    >>> {count: round(1e3 * answer.by_layers[count].end_s) for count in (1, 2, 16, 96)}
    {1: 550, 2: 486, 16: 494, 96: 541}

    Args:
        num_layers: Layers, each of them ready as a whole.
        backward_s: Seconds of the backward pass, over all layers.
        gradient_bytes: Bytes of all gradients.
        profile: Layers that are equal; tapered, as a convolutional network's, where the layers that are ready first
            have most of the bytes and take as long; or equal ones behind an embedding, which has 30 % of the bytes,
            takes no time and is ready last.
        num_workers: Workers that add up.
        bytes_per_s: Bandwidth of one direction of a worker's link.
        latency_s: Latency of each message.
        algorithm: Algorithm of the all-reduce.
    """

    def all_reduce_at(bandwidth: float) -> AllReduce:
        return partial(
            ALL_REDUCES[algorithm], num_ranks=num_workers, link=Link(latency_s=latency_s, bytes_per_s=bandwidth)
        )

    def shaped(kind: Shape) -> Layers:
        return _shaped(kind, num_layers=num_layers, backward_s=backward_s, gradient_bytes=gradient_bytes)

    all_reduce_s, layers = all_reduce_at(bytes_per_s), shaped(profile)
    by_layers = {count: buckets_of_layers(layers, count, all_reduce_s) for count in range(1, num_layers + 1)}
    whole, cap_bytes = by_layers[num_layers], best_cap_bytes(layers, all_reduce_s)
    return Overlap(
        layers=layers,
        by_layers=by_layers,
        by_cap={
            cap: buckets_of_bytes(layers, cap, all_reduce_s) for cap in caps_bytes(layers, most=_MOST_POINTS).tolist()
        },
        best_layers=min(by_layers, key=lambda count: by_layers[count].end_s),
        best_cap_bytes=cap_bytes,
        best=buckets_of_bytes(layers, cap_bytes, all_reduce_s),
        optimum=best_buckets(layers, all_reduce_s),
        default=ddp_buckets(layers, all_reduce_s),
        whole=whole,
        hidden_entirely_s=max(layers.backward_s, whole.all_reduces_s),
        least_s=layers.backward_s + all_reduce_s(layers.bytes[-1]),
        by_shape={
            kind: _three(each, best_cap_bytes(each, all_reduce_s), all_reduce_s)
            for kind in get_args(Shape)
            for each in [shaped(kind)]
        },
        by_bandwidth=tuple(
            _at_bandwidth(factor * bytes_per_s, layers, all_reduce_at(factor * bytes_per_s))
            for factor in _BANDWIDTH_FACTORS
        ),
    )


def _shaped(kind: Shape, *, num_layers: int, backward_s: float, gradient_bytes: float) -> Layers:
    seconds, sizes = [backward_s / num_layers] * num_layers, [gradient_bytes / num_layers] * num_layers
    if kind == "tapered":
        weights = [_TAPER ** (-place / num_layers) for place in range(num_layers)]
        sizes = [gradient_bytes * weight / math.fsum(weights) for weight in weights]
    elif kind == "embedding" and num_layers > 1:
        others = num_layers - 1
        seconds = [*[backward_s / others] * others, 0.0]
        sizes = [*[(1 - _EMBEDDING_SHARE) * gradient_bytes / others] * others, _EMBEDDING_SHARE * gradient_bytes]
    return Layers(seconds=tuple(seconds), bytes=tuple(sizes))


def _three(layers: Layers, cap_bytes: float, all_reduce_s: AllReduce) -> tuple[Bucketing, Bucketing, Bucketing]:
    """Fill buckets up to a limit, as PyTorch does by default, and all in one."""
    best = buckets_of_bytes(layers, cap_bytes, all_reduce_s)
    return best, ddp_buckets(layers, all_reduce_s), buckets_of_layers(layers, len(layers), all_reduce_s)


def _at_bandwidth(bytes_per_s: float, layers: Layers, all_reduce_s: AllReduce) -> BandwidthPoint:
    cap_bytes = best_cap_bytes(layers, all_reduce_s)
    best, default, whole = _three(layers, cap_bytes, all_reduce_s)
    return BandwidthPoint(
        bytes_per_s=bytes_per_s,
        best_cap_bytes=cap_bytes,
        best_exposed_s=best.exposed_s,
        default_exposed_s=default.exposed_s,
        whole_exposed_s=whole.exposed_s,
    )
