"""The costs of skewed routing in a mixture of experts: time of the all-to-all, and dropped tokens.

Tokens like expert i with a popularity of ``1/i^s``, each k different ones. An expert takes at most c times the mean of
tokens, and drops the rest (Lepikhin et al. 2020; Fedus et al. 2021). With many tokens the fullest expert has ``E/Σ
1/i^s`` times the mean and the dropped are ``Σ max(0, p_i - c/E)``. With few, chance adds to that, so routing is drawn.

In the all-to-all every device sends its parts one after another and receives others' meanwhile. Such messages can be
put into rounds in which no device waits but the busiest (König 1916), so it takes ``(D-1) α`` and the largest of all
sums of what a device sends and of what it receives, over its bandwidth.

``docs/planning/studies/mixture-of-experts.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from plesio.core.charts import Axis, Chart, HeatMap, LineChart, Series, Table
from plesio.core.errors import ArgumentError
from plesio.core.inputs import Written
from plesio.core.units import format_bandwidth, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, Within
from plesio.cost.collectives import all_to_all_s
from plesio.cost.link import Link
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.expert_routing import (
    FEW_EXPERTS,
    ExpertLayer,
    Placement,
    Routing,
    dropped_share,
    popularities,
)
from plesio_planning.studies.published_all_to_all import PublishedFit, fit_published
from plesio_planning.studies.router_balancing import BalancedRouting, balance_router
from plesio_planning.studies.study import Answer

_SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
_CAPACITIES = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_DROP_SKEWS = (0.0, 0.5, 1.0)
_BALANCE_WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0)
_MOST_BALANCED = 128
"""Experts of the router that learns: more would only take longer."""
_MOST_WORK = 2 * 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts(Answer):
    """The costs of routing.

    Attributes:
        at: Routing with the skew that was asked for.
        by_skew: Routing with other skews.
        num_experts: E.
        capacity_factor: c.
        balanced_s: Seconds of one way of the all-to-all, were all experts liked alike and tokens without number.
        drops: Share of tokens that is dropped by skew, at some capacities, with very many tokens.
        sent_bytes: Bytes from each device to each, with the capacity.
        balancing: The router after descent with a balancing loss of some weights.
        published: Three constants against a published table.
    """

    unit: ClassVar[str] = "s"
    at: Routing
    by_skew: tuple[Routing, ...]
    num_experts: int
    capacity_factor: float
    balanced_s: float
    drops: Mapping[float, tuple[float, ...]]
    sent_bytes: tuple[tuple[float, ...], ...]
    balancing: tuple[BalancedRouting, ...]
    published: PublishedFit

    @property
    def finding(self) -> str:
        """Load, drops, times; what spreading and balancing save."""
        at = self.at
        balanced = min(self.balancing, key=lambda one: one.load)
        return (
            f"The fullest of {self.num_experts} experts gets {at.load:.3g} times the mean; at {self.capacity_factor:g} "
            f"times the mean {_percent(at.dropped)} of the tokens are dropped. Without dropping, an all-to-all takes "
            f"{at.all_to_all_s / self.balanced_s:.3g} times as long as a balanced one, "
            f"{at.spread_s / self.balanced_s:.3g} times if popular experts are spread; a balancing loss brings the "
            f"fullest to {balanced.load:.2g} times the mean and {_percent(balanced.moved)} of the tokens to another "
            "expert than they like most."
        )

    @property
    def total(self) -> float:
        """Seconds of a layer's two all-to-alls, with the capacity."""
        return 2 * self.at.capped_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The way to the experts, and back."""
        return {"dispatch": self.at.capped_s, "combine": self.at.capped_s}

    def tables(self) -> Sequence[Table]:
        """Make the tables by skew, of balancing, and the published one."""
        return [self._skews(), self._balancing(), self._published()]

    def _skews(self) -> Table:
        rows = [
            (
                f"{one.skew:g}",
                f"{one.load:.2f} ({one.load_ci95[0]:.2f} to {one.load_ci95[1]:.2f})",
                f"{one.load_limit:.2f}",
                f"{_percent(one.dropped)} ({100 * one.dropped_ci95[0]:.3g} to {100 * one.dropped_ci95[1]:.3g})",
                _percent(one.dropped_limit),
                format_seconds(one.all_to_all_s),
                format_seconds(one.spread_s),
                format_seconds(one.capped_s),
            )
            for one in self.by_skew
        ]
        headers = (
            "skew",
            "fullest by mean (95 %)",
            "many tokens",
            "dropped (95 %)",
            "many tokens",
            "all-to-all",
            "experts spread",
            "with capacity",
        )
        return Table(title=f"By skew, capacity {self.capacity_factor:g} times the mean:", headers=headers, rows=rows)

    def _balancing(self) -> Table:
        rows = [
            (f"{one.weight:g}", f"{one.load:.2f}", _percent(one.dropped), _percent(one.moved)) for one in self.balancing
        ]
        headers = ("weight", "fullest by mean", "dropped", "not where liked most")
        return Table(title="A learning router by the weight of its balancing loss:", headers=headers, rows=rows)

    def _published(self) -> Table:
        rows = [
            (
                f"{one.quantity}, {one.setting['devices']} devices",
                format_seconds(one.measured),
                format_seconds(one.predicted),
                f"{100 * one.error:+.1f} %",
                f"{100 * one.baseline_error:+.1f} %",
            )
            for one in self.published.predictions
        ]
        headers = ("H800", "published", "model", "error", "at 50 GB/s")
        return Table(title=f"Against a published table: {_constants(self.published)}:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw times by skew, drops by capacity, bytes by pair of devices, balancing, and the published table."""
        return [self._times(), self._drops(), self._volumes(), self._descent(), self._against()]

    def _times(self) -> LineChart:
        ways = {
            "no capacity, experts in order": [one.all_to_all_s / self.balanced_s for one in self.by_skew],
            "no capacity, popular experts spread": [one.spread_s / self.balanced_s for one in self.by_skew],
            f"capacity {self.capacity_factor:g}": [one.capped_s / self.balanced_s for one in self.by_skew],
        }
        slower = self.at.all_to_all_s / self.balanced_s
        return LineChart(
            slug="skew",
            title=f"A skew of {self.at.skew:g} makes an all-to-all {slower:.2g} times as long",
            caption="One way of the all-to-all by the skew of the routing, against a balanced one.",
            x=Axis(title="skew (exponent of Zipf's law)"),
            y=Axis(title="times a balanced all-to-all"),
            series=lines_of([one.skew for one in self.by_skew], ways),
        )

    def _drops(self) -> LineChart:
        return LineChart(
            slug="capacity",
            title=f"At {self.capacity_factor:g} times the mean {_percent(self.at.dropped)} of the tokens are dropped",
            caption="Share of tokens that are dropped by the experts' capacity, with very many tokens.",
            x=Axis(title="capacity (by the mean)", log=True),
            y=Axis(title="dropped (%)"),
            series=lines_of(
                _CAPACITIES,
                {f"skew {skew:g}": [100 * share for share in shares] for skew, shares in self.drops.items()},
            ),
            marks={"asked for": self.capacity_factor},
        )

    def _volumes(self) -> HeatMap:
        names = [str(device) for device in range(len(self.sent_bytes))]
        values = [[one / 1e6 for one in row] for row in self.sent_bytes]
        received = np.sum(values, axis=0)
        return HeatMap(
            slug="volumes",
            title=f"Device {int(received.argmax())} receives most: {received.max():.3g} MB",
            caption="What devices send one another in one way of the all-to-all, with the capacity.",
            x=Axis(title="to device"),
            y=Axis(title="from device"),
            columns=names,
            rows=names,
            values=values,
            scale=Axis(title="sent (MB)"),
        )

    def _descent(self) -> LineChart:
        none = next(one for one in self.balancing if one.weight == 0)
        return LineChart(
            slug="balancing",
            title=f"Without a balancing loss the fullest expert comes to {none.load:.2g} times the mean",
            caption="The fullest expert while a router learns, by the weight of the balancing loss.",
            x=Axis(title="step"),
            y=Axis(title="fullest expert by the mean", log=True),
            series=[
                Series(name=f"weight {one.weight:g}", x=range(len(one.load_by_step)), y=one.load_by_step)
                for one in self.balancing
            ],
        )

    def _against(self) -> LineChart:
        series = []
        for way in dict.fromkeys(one.quantity for one in self.published.predictions):
            points = [one for one in self.published.predictions if one.quantity == way]
            devices = [int(one.setting["devices"]) for one in points]
            series.append(Series(name=way, x=devices, y=[1e6 * one.predicted for one in points]))
            measured = [1e6 * one.measured for one in points]
            series.append(Series(name=f"{way}, published", x=devices, y=measured, style="points", group=way))
        worst = max(abs(one.error) for one in self.published.predictions)
        return LineChart(
            slug="published",
            title=f"Three constants are at most {100 * worst:.0f} % off",
            caption=f"DeepEP's all-to-all on H800 by number of devices; {_constants(self.published)}.",
            x=Axis(title="devices", log=True),
            y=Axis(title="time (µs)"),
            series=series,
        )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _constants(fit: PublishedFit) -> str:
    return (
        f"{format_seconds(fit.latency_s)}, {format_bandwidth(fit.bytes_per_s)} between nodes, "
        f"{format_bandwidth(fit.node_bytes_per_s)} in one"
    )


def mixture_of_experts(
    *,
    num_experts: Annotated[int, Within(2, 4096)] = 64,
    num_devices: Annotated[int, Within(2, 1024)] = 8,
    tokens_per_device: Annotated[int, Within(1, 10**6)] = 4096,
    experts_per_token: Annotated[int, Within(1, 16)] = 1,
    skew: Annotated[float, Within(0, 10)] = 1.0,
    capacity_factor: Annotated[float, Within(1e-3, 1e6)] = 1.25,
    placement: Placement = "in-order",
    hidden_size: Annotated[int, Within(1, 10**6), Written(option="hidden")] = 4096,
    element_bytes: Annotated[int, Within(1, 64)] = 2,
    bytes_per_s: Annotated[float, BANDWIDTH] = 50e9,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
    num_trials: Annotated[int, Within(2, 500)] = 50,
    seed: int = 0,
) -> MixtureOfExperts:
    """Load, drops and all-to-all times by skew; a balancing loss; a published table.

    >>> answer = mixture_of_experts()
    >>> round(answer.at.load_limit, 1), round(answer.at.dropped_limit, 2)
    (13.5, 0.42)

    Args:
        num_experts: Experts of a layer.
        num_devices: Devices among which they are divided; each also has tokens.
        tokens_per_device: Tokens of a device in a batch.
        experts_per_token: How many of the experts a token goes through.
        skew: Exponent of Zipf's law; 0 is uniform.
        capacity_factor: Tokens that an expert takes, by the mean.
        placement: Experts in order of their popularity, or popular ones on different devices.
        hidden_size: Numbers of a token.
        element_bytes: Bytes of a number.
        bytes_per_s: Bandwidth of one direction of a device's link.
        latency_s: Latency of each message.
        num_trials: Draws of the routing.
        seed: Seed of what is drawn.
    """
    _check_experts(num_experts, num_devices=num_devices, top_k=experts_per_token)
    _check_work(
        num_trials, num_devices, tokens_per_device=tokens_per_device, num_experts=num_experts, top_k=experts_per_token
    )
    link = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
    layer = ExpertLayer(
        num_experts=num_experts,
        num_devices=num_devices,
        tokens_per_device=tokens_per_device,
        top_k=experts_per_token,
        capacity_factor=capacity_factor,
        placement=placement,
        vector_bytes=hidden_size * element_bytes,
        link=link,
    )
    by_skew = {each: layer.routed(each, num_draws=num_trials, seed=seed) for each in sorted({*_SKEWS, skew})}
    sent_bytes = tokens_per_device * experts_per_token * hidden_size * element_bytes
    return MixtureOfExperts(
        at=by_skew[skew].routing,
        by_skew=tuple(one.routing for one in by_skew.values()),
        num_experts=num_experts,
        capacity_factor=capacity_factor,
        balanced_s=all_to_all_s(sent_bytes, num_ranks=num_devices, link=link),
        drops={
            each: tuple(dropped_share(by_skew[each].chances, factor) for factor in _CAPACITIES)
            for each in sorted({*_DROP_SKEWS, skew})
        },
        sent_bytes=tuple(map(tuple, by_skew[skew].sent_bytes.tolist())),
        balancing=balance_router(
            popularities(min(num_experts, _MOST_BALANCED), skew),
            _BALANCE_WEIGHTS,
            capacity_factor=capacity_factor,
            seed=seed,
        ),
        published=fit_published(),
    )


def _check_work(num_draws: int, num_devices: int, *, tokens_per_device: int, num_experts: int, top_k: int) -> None:
    """Make sure that the draws end within seconds."""
    choices = num_experts if top_k > FEW_EXPERTS else top_k
    a_draw = num_devices * (max(num_experts, num_devices) if top_k == 1 else tokens_per_device * choices)
    if num_draws * a_draw > _MOST_WORK:
        most = _MOST_WORK // a_draw
        instead = f"at most {most} for `num_trials`" if most >= 2 else "a smaller `tokens_per_device` or `num_devices`"
        raise ArgumentError(
            f"`num_trials` is {num_draws} with `num_devices` of {num_devices}, "
            f"`tokens_per_device` of {tokens_per_device}, `num_experts` of {num_experts} and "
            f"`experts_per_token` of {top_k}, which takes too long; write {instead}"
        )


def _check_experts(num_experts: int, *, num_devices: int, top_k: int) -> None:
    if num_experts % num_devices:
        raise ArgumentError(
            f"`num_experts` is {num_experts} and `num_devices` is {num_devices}; "
            f"write a multiple of {num_devices} for `num_experts`, for each device has as many"
        )
    if top_k >= num_experts:
        raise ArgumentError(
            f"`experts_per_token` is {top_k} and `num_experts` is {num_experts}; "
            f"write less than {num_experts} for `experts_per_token`"
        )
