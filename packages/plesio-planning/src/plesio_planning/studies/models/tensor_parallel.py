"""The traffic of a transformer whose layers are cut over k devices, and the time that it takes.

The bytes that a device sends depend on how matrices are cut (`studies.tensor_cuts`); times are those of Megatron's cut.
Computing is ``72 n h² (1 + s/6h)`` FLOPs a layer, forward and backward (Narayanan et al. 2021, appendix), divided by k.
All-reduces of a layer wait for its computing and are waited for, so times add up. Beyond a host they are flat rings
over the network or go through two levels, whichever is faster.

``docs/planning/studies/tensor-parallel.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Series, Table
from plesio.core.inputs import Written
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, Within
from plesio.cost.collectives import ring_all_reduce_s
from plesio.cost.link import Link
from plesio_planning.activations import layer_activation_bytes
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.models.collectives import RankLinks
from plesio_planning.studies.study import Answer
from plesio_planning.studies.tensor_cuts import CutBytes, check_heads, cut_bytes, pays_from_tokens

_MOST_DEVICES = 64
_TOKENS = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPoint:
    """One number of devices.

    Attributes:
        num_devices: k.
        computing_s: Seconds of an iteration in which a device computes.
        forward_s: Seconds of the forward pass's all-reduces.
        backward_s: Seconds of the backward pass's.
        sent_bytes: Bytes that a device sends in an iteration.
        activation_bytes: Bytes that it keeps of a layer.
        sequence_activation_bytes: The same with sequence parallelism.
    """

    num_devices: int
    computing_s: float
    forward_s: float
    backward_s: float
    sent_bytes: float
    activation_bytes: float
    sequence_activation_bytes: float

    @property
    def communicating_s(self) -> float:
        """Seconds of all all-reduces."""
        return self.forward_s + self.backward_s

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration."""
        return self.computing_s + self.communicating_s

    @property
    def share(self) -> float:
        """Share of it that communicates."""
        return self.communicating_s / self.iteration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel(Answer):
    """The time of an iteration with its layers cut.

    Attributes:
        at: The number of devices that was asked for, Megatron's cut.
        by_devices: Powers of two, and it.
        num_layers: Layers of the model.
        cuts: Bytes of a device and layer by number of devices and cut.
        by_tokens: Bytes of a device and layer by cut and number of tokens, on the largest square of devices.
        square: That number of devices.
        pays_from: Tokens from which on the 2D cut sends less there.
        devices_per_host: Devices that reach each other without the network.
        tokens: n, of an iteration.
    """

    unit: ClassVar[str] = "s"
    at: TensorPoint
    by_devices: tuple[TensorPoint, ...]
    num_layers: int
    cuts: Mapping[int, Mapping[str, CutBytes]]
    by_tokens: Mapping[str, tuple[float, ...]]
    square: int
    pays_from: float
    devices_per_host: int
    tokens: int

    @property
    def finding(self) -> str:
        """Bytes, time and share; what the host's boundary costs; when the 2D cut pays."""
        at = self.at
        beyond = self._beyond if at.num_devices <= self.devices_per_host else None
        boundary = "" if beyond is None else f"; over {beyond.num_devices}, beyond a host, {100 * beyond.share:.0f} %"
        return (
            f"Cut over {counted(at.num_devices, 'device')}, each sends {format_bytes(at.sent_bytes)} an iteration, "
            "which takes "
            f"{format_seconds(at.communicating_s)} beside {format_seconds(at.computing_s)} of computing: "
            f"{100 * at.share:.1f} % of the time{boundary}. On {counted(self.square, 'device')} a 2D cut sends less "
            "from "
            f"{self.pays_from:.0f} tokens on."
        )

    @property
    def _beyond(self) -> TensorPoint | None:
        """The fewest devices that are more than a host has."""
        return next((point for point in self.by_devices if point.num_devices > self.devices_per_host), None)

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return self.at.iteration_s

    @property
    def parts(self) -> Mapping[str, float]:
        """Computing, and the all-reduces of either pass."""
        return {
            "computing": self.at.computing_s,
            "forward all-reduces": self.at.forward_s,
            "backward all-reduces": self.at.backward_s,
        }

    def tables(self) -> Sequence[Table]:
        """Make the tables by number of devices, and by cut."""
        names = self.cuts[self.square]
        cuts = [
            (str(devices), *(format_bytes(by[name].both) if name in by else "–" for name in names))
            for devices, by in self.cuts.items()
        ]
        return [
            table_of(
                "By number of devices, Megatron's cut:",
                self.by_devices,
                {
                    "devices": lambda point: str(point.num_devices),
                    "sent a layer": lambda point: format_bytes(point.sent_bytes / self.num_layers),
                    "communicating a layer": lambda point: format_seconds(point.communicating_s / self.num_layers),
                    "computing a layer": lambda point: format_seconds(point.computing_s / self.num_layers),
                    "iteration": lambda point: format_seconds(point.iteration_s),
                    "communicating": lambda point: f"{100 * point.share:.1f} %",
                    "kept a layer": lambda point: format_bytes(point.activation_bytes),
                    "kept with sequence": lambda point: format_bytes(point.sequence_activation_bytes),
                },
            ),
            Table(title="Sent by a device for a layer, by cut:", headers=("devices", *names), rows=cuts),
        ]

    def charts(self) -> Sequence[Chart]:
        """Time by devices; bytes by cut; bytes by tokens."""
        return [self._times(), self._by_cut(), self._by_tokens()]

    def _times(self) -> BarChart:
        beyond = self._beyond if self.at.num_devices <= self.devices_per_host else None
        devices = counted(self.at.num_devices, "device")
        title = f"{100 * self.at.share:.0f} % of the time of {devices} goes into all-reduces"
        if beyond is not None:
            title += f", {beyond.num_devices}, beyond a host, {100 * beyond.share:.0f} %"
        return BarChart(
            slug="devices",
            title=title,
            caption="Seconds of an iteration by number of devices, with Megatron's cut.",
            axis=Axis(title="time (s)"),
            rows=[counted(point.num_devices, "device") for point in self.by_devices],
            parts={
                "computing": [point.computing_s for point in self.by_devices],
                "all-reduces": [point.communicating_s for point in self.by_devices],
            },
        )

    def _by_cut(self) -> LineChart:
        at = self.cuts[self.at.num_devices]
        less = at["columns"].both / at["Megatron"].both if at["Megatron"].both else 1.0
        return LineChart(
            slug="cuts",
            title=f"Cutting matrices in pairs sends {less:.2g} times less than each by itself",
            caption="What a device sends for a layer, forward and backward, by number of devices.",
            x=Axis(title="devices", log=True),
            y=Axis(title="sent a layer (MB)"),
            series=[
                Series(name=name, x=list(sent), y=[cut.both / 1e6 for cut in sent.values()])
                for name in self.cuts[self.square]
                for sent in [{devices: by[name] for devices, by in self.cuts.items() if devices > 1 and name in by}]
            ],
            marks={"a host": self.devices_per_host},
        )

    def _by_tokens(self) -> LineChart:
        return LineChart(
            slug="tokens",
            title=f"On {counted(self.square, 'device')} a 2D cut sends less from {self.pays_from:.0f} tokens on",
            caption="What a device sends for a layer by number of tokens; 2D sends matrices, too, whatever the tokens.",
            x=Axis(title="tokens", log=True),
            y=Axis(title="sent a layer (MB)", log=True),
            series=lines_of(_TOKENS, {name: [one / 1e6 for one in sizes] for name, sizes in self.by_tokens.items()}),
            marks={"as much": self.pays_from} if self.pays_from <= _TOKENS[-1] else {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """A transformer's layers, and the sequences that go through them in an iteration."""

    hidden_size: int
    num_layers: int
    num_heads: int
    sequence_length: int
    micro_batch: int
    element_bytes: int

    @property
    def tokens(self) -> int:
        return self.sequence_length * self.micro_batch

    def cuts(self, num_devices: int, *, tokens: int) -> dict[str, CutBytes]:
        """Return the bytes of a device and layer, by cut, of so many tokens."""
        return cut_bytes(
            num_devices=num_devices, tokens=tokens, hidden=self.hidden_size, element_bytes=self.element_bytes
        )

    def point(self, num_devices: int, *, flops_per_s: float, links: RankLinks) -> TensorPoint:
        """Compute an iteration with Megatron's cut over so many devices."""
        layer_flops = 72 * self.tokens * self.hidden_size**2 * (1 + self.sequence_length / (6 * self.hidden_size))
        num_bytes = self.tokens * self.hidden_size * self.element_bytes
        # two in each pass of a layer
        all_reduces_s = 2 * self.num_layers * _all_reduce_s(links, num_bytes, num_devices=num_devices)
        return TensorPoint(
            num_devices=num_devices,
            computing_s=self.num_layers * layer_flops / num_devices / flops_per_s,
            forward_s=all_reduces_s,
            backward_s=all_reduces_s,
            sent_bytes=self.num_layers * self.cuts(num_devices, tokens=self.tokens)["Megatron"].both,
            activation_bytes=self._kept_bytes(num_devices, sequence_parallel=False),
            sequence_activation_bytes=self._kept_bytes(num_devices, sequence_parallel=num_devices > 1),
        )

    def _kept_bytes(self, num_devices: int, *, sequence_parallel: bool) -> float:
        return layer_activation_bytes(
            hidden=self.hidden_size,
            num_heads=self.num_heads,
            sequence=self.sequence_length,
            batch=self.micro_batch,
            tensor_parallel=num_devices,
            sequence_parallel=sequence_parallel,
        )


def _all_reduce_s(links: RankLinks, num_bytes: float, *, num_devices: int) -> float:
    """Seconds of an all-reduce: in a host a ring; beyond it a flat ring or two levels, whichever is faster."""
    if num_devices <= links.ranks_per_host:
        return ring_all_reduce_s(num_bytes, num_ranks=num_devices, link=links.local)
    flat = Link(
        latency_s=max(links.local_latency_s, links.latency_s),
        bytes_per_s=min(links.local_bytes_per_s, links.bytes_per_s),
    )
    flat_s = ring_all_reduce_s(num_bytes, num_ranks=num_devices, link=flat)
    if num_devices % links.ranks_per_host:
        return flat_s
    return min(flat_s, links.all_reduce_s("hierarchical", num_bytes, num_ranks=num_devices))


def tensor_parallel(
    *,
    tp: Annotated[int, Within(1, 2**16)] = 8,
    hidden_size: Annotated[int, Within(1, 10**6), Written(option="hidden")] = 12288,
    num_layers: Annotated[int, Within(1, 10**6)] = 96,
    num_heads: Annotated[int, Within(1, 10**6)] = 96,
    sequence_length: Annotated[int, Within(1, 10**9)] = 2048,
    micro_batch: Annotated[int, Within(1, 10**9)] = 1,
    element_bytes: Annotated[int, Within(1, 64)] = 2,
    device_tflops: Annotated[float, Within(1e-6, 1e9)] = 156.0,
    local_bytes_per_s: Annotated[float, BANDWIDTH] = 300e9,
    local_latency_s: Annotated[float, DURATION_OR_0] = 0.0,
    devices_per_host: Annotated[int, Within(1, 2**16)] = 8,
    bytes_per_s: Annotated[float, BANDWIDTH] = 25e9,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
) -> TensorParallel:
    """Return the bytes and times of an iteration by number of devices and by cut.

    >>> answer = tensor_parallel()
    >>> round(answer.at.sent_bytes / 1e9, 1), round(answer.at.communicating_s, 3), round(100 * answer.at.share, 1)
    (33.8, 0.113, 6.0)

    Args:
        tp: Devices that share every layer.
        hidden_size: Width between layers.
        num_layers: Layers of the model.
        num_heads: Heads of a layer's attention.
        sequence_length: Tokens of a sequence.
        micro_batch: Sequences at a time.
        element_bytes: Bytes of a number that is sent.
        device_tflops: TFLOP/s of a device as it reaches them; 156 is half of an A100's in FP16.
        local_bytes_per_s: Bandwidth of one direction of a device's link in its host.
        local_latency_s: Latency of each message there.
        devices_per_host: Devices that reach each other so.
        bytes_per_s: Bandwidth of one direction of a device's own link to other hosts.
        latency_s: Latency of each message there.
    """
    check_heads(num_heads, tp=tp, hidden_size=hidden_size)
    links = RankLinks(
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        ranks_per_host=devices_per_host,
        local_latency_s=local_latency_s,
        local_bytes_per_s=local_bytes_per_s,
    )
    layers = _Layers(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        sequence_length=sequence_length,
        micro_batch=micro_batch,
        element_bytes=element_bytes,
    )
    most = max(_MOST_DEVICES, tp)
    counts = sorted({*(2**power for power in range(most.bit_length())), tp})
    points = {devices: layers.point(devices, flops_per_s=device_tflops * 1e12, links=links) for devices in counts}
    square = max(devices for devices in counts if math.isqrt(devices) ** 2 == devices)
    on_square = [layers.cuts(square, tokens=number) for number in _TOKENS]
    return TensorParallel(
        at=points[tp],
        by_devices=tuple(points.values()),
        num_layers=num_layers,
        cuts={devices: layers.cuts(devices, tokens=layers.tokens) for devices in counts},
        by_tokens={name: tuple(by[name].both for by in on_square) for name in ("Megatron", "2D")},
        square=square,
        pays_from=pays_from_tokens(num_devices=square, hidden=hidden_size),
        devices_per_host=devices_per_host,
        tokens=layers.tokens,
    )
