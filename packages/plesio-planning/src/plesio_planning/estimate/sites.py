"""A run over several sites that are joined by slow links: plain data parallelism beside low-communication training.

The devices are M sites of as many whole replicas; each trains in the layout. Two ways:

- *every step*: sites add up their gradients in a ring, beside the last micro-batch's backward pass.
- *local steps* (DiLoCo, Douillard et al. 2023; Streaming DiLoCo, Douillard et al. 2025): each site takes H steps with
  its part of the batch, and then the sites average what their parameters changed by, in P fragments at offsets of their
  own, each of b bits an element, behind the next τ steps. Sites fail alone (`estimate.goodput_ways`).

A ring of M sites sends ``2 (M-1)/M`` of the bytes over each link. A fragment that takes longer than the τ steps beside
it keeps all waiting; fragments share one link, so H steps take at least as long as all of them.

Local steps cost loss. The differences between data parallelism and Streaming DiLoCo on C4 (2501.18512, tables 1 and 4:
35 M and 100 M parameters, H 30 and 100) are fitted by

    ΔL = 0.03 (H/100)^0.34 (N/10^8)^-0.49

which shrinks with size as others found (2503.09799), and becomes tokens by the law of Hoffmann et al. (2022):
``B/D^0.28`` has to fall by ΔL. ``docs/planning/index.md`` says how far that can be trusted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

from plesio.core.charts import Axis, BarChart, Chart, Table
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.units import counted, format_bandwidth, format_bytes, format_percent, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, Within
from plesio_planning.estimate.exploration import of_size
from plesio_planning.estimate.goodput_ways import FailingDevices, ways_to_go_on
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Transformer
from plesio_planning.estimate.step import Step, estimate_step
from plesio_planning.estimate.training import Training
from plesio_planning.estimate.training_charts import format_days, format_dollars

_DAY_S = 86_400.0
_PENALTY, _PENALTY_PERIOD, _PENALTY_PARAMETERS = 0.03, 100.0, 1e8
_BY_PERIOD, _BY_PARAMETERS = 0.34, -0.49
_B, _BETA = 410.7, 0.28
"""Hoffmann et al. 2022, equation 10."""
_BACKWARD = 2 / 3
"""Share of a micro-batch's time that is its backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Sites among which a run's devices are divided, and how they exchange.

    Attributes:
        num_sites: Sites of as many devices each, joined by slow links: compares an exchange a step with local steps.
        site_bytes_per_s: Bandwidth of a site to the others: "10 Gbit/s".
        site_latency_s: Time from a site to the next.
        local_steps: H, steps between two exchanges.
        num_fragments: P, parts of the parameters that are exchanged at different steps.
        exchange_bits: b, bits of a parameter that is exchanged.
        overlapped_steps: τ, steps that an exchange may take beside computing.
    """

    num_sites: Annotated[int, Within(1, 1000)] = 1
    site_bytes_per_s: Annotated[float | None, BANDWIDTH] = None
    site_latency_s: Annotated[float, DURATION_OR_0] = 0.05
    local_steps: Annotated[int, Within(1, 10_000)] = 100
    num_fragments: Annotated[int, Within(1, 1000)] = 8
    exchange_bits: Annotated[int, Within(1, 32)] = 4
    overlapped_steps: Annotated[int, Within(0, 1000)] = 5

    def __post_init__(self) -> None:
        if self.num_sites > 1 and self.site_bytes_per_s is None:
            raise ArgumentError("`num_sites` are joined by links; write their `site_bytes_per_s = 10 Gbit/s`")
        if self.num_sites == 1 and any(getattr(self, one.name) != one.default for one in fields(self)):
            raise ArgumentError("without `num_sites` there are no links between sites; write `num_sites = 2` or more")
        if self.num_fragments > self.local_steps or self.overlapped_steps > self.local_steps:
            raise ArgumentError(
                f"`num_fragments` is {self.num_fragments} and `overlapped_steps` {self.overlapped_steps} of "
                f"{self.local_steps} `local_steps`; write no more than these"
            )

    def exchange_s(self, num_bytes: float) -> float:
        """Return the seconds that a ring of the sites takes to add up so many bytes."""
        assert self.site_bytes_per_s is not None
        rounds = 2 * (self.num_sites - 1)
        return rounds * (num_bytes / self.num_sites / self.site_bytes_per_s + self.site_latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOverSites:
    """A way to train over the sites.

    Attributes:
        step_s: Seconds of a step, with what its exchange adds on average.
        waiting_s: Seconds of it that sites wait for each other.
        step_bytes: Bytes that a site sends a step, on average.
        hiding_bytes_per_s: Bandwidth of a site at which nothing waits.
        goodput: Share of the time that is work.
        more_tokens: Factor of tokens for the same loss.
        most_more_tokens: The same at the upper end.
        total_s: Seconds of the run, for the same loss.
        cost: US dollars.
    """

    name: str
    step_s: float
    waiting_s: float
    step_bytes: float
    hiding_bytes_per_s: float
    goodput: float
    more_tokens: float
    most_more_tokens: float
    total_s: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverSites:
    """Both ways on the same devices, and as one machine.

    Attributes:
        together: The run as if there were one site.
        ways: Every step, and local steps.
    """

    sites: Sites
    together: Training
    ways: tuple[WayOverSites, ...]

    @property
    def finding(self) -> str:
        """Name both ways, and what the local steps take for granted."""
        plain, local = self.ways
        sites = self.sites
        return (
            f"Over {counted(sites.num_sites, 'site')} at {format_bandwidth(sites.site_bytes_per_s or 0)} an exchange a "
            f"step takes {format_days(plain.total_s)} and {format_dollars(plain.cost)}, "
            f"{format_percent(plain.waiting_s / plain.step_s)} of it waiting; {sites.local_steps} local steps in "
            f"{counted(sites.num_fragments, 'fragment')} of {sites.exchange_bits} bits take "
            f"{format_days(local.total_s)} and {format_dollars(local.cost)}, "
            f"{format_percent(local.waiting_s / local.step_s)} waiting, with {local.more_tokens:.3g} times the tokens "
            f"for the same loss (1 to {local.most_more_tokens:.3g}; nobody published a difference above 4 billion "
            f"parameters). One site would take {format_days(self.together.total_s)}."
        )

    @property
    def tables(self) -> Sequence[Table]:
        """The two ways beside one machine."""
        rows = [
            (
                way.name,
                format_seconds(way.step_s),
                format_percent(way.waiting_s / way.step_s),
                format_bytes(way.step_bytes),
                format_bandwidth(way.hiding_bytes_per_s),
                format_percent(way.goodput),
                f"{way.more_tokens:.3g}",
                format_days(way.total_s),
                format_dollars(way.cost),
            )
            for way in self.ways
        ]
        headers = ("way", "step", "waits", "sent a step", "hidden from", "goodput", "tokens", "run", "cost")
        return [Table(title=f"Over {self.sites.num_sites} sites:", headers=headers, rows=rows)]

    @property
    def charts(self) -> Sequence[Chart]:
        """The days of each way."""
        plain, local = self.ways
        parts: dict[str, list[float]] = {"computing": [], "waiting": [], "failures and states": [], "more tokens": []}
        for way in self.ways:
            days = way.total_s / _DAY_S
            same = days / way.more_tokens
            parts["computing"].append(same * way.goodput * (1 - way.waiting_s / way.step_s))
            parts["waiting"].append(same * way.goodput * way.waiting_s / way.step_s)
            parts["failures and states"].append(same * (1 - way.goodput))
            parts["more tokens"].append(days - same)
        faster = local if local.total_s < plain.total_s else plain
        return [
            BarChart(
                slug="sites",
                title=f"{faster.name} takes {format_days(faster.total_s)}",
                caption="What the days of the run go into, for the same loss.",
                axis=Axis(title="time (days)"),
                rows=[way.name for way in self.ways],
                parts=parts,
                ends=[format_days(way.total_s) for way in self.ways],
            )
        ]


def loss_penalty(num_parameters: float, *, local_steps: int) -> float:
    """Return what local steps add to the loss, nats a token: fitted to four published differences.

    >>> round(loss_penalty(1e8, local_steps=100), 3), round(loss_penalty(35e6, local_steps=30), 3)
    (0.03, 0.033)
    >>> loss_penalty(1e9, local_steps=1)
    0.0
    """
    if local_steps == 1:
        return 0.0
    by_size = math.pow(num_parameters / _PENALTY_PARAMETERS, _BY_PARAMETERS)
    return _PENALTY * math.pow(local_steps / _PENALTY_PERIOD, _BY_PERIOD) * by_size


def extra_tokens(tokens: float, penalty: float) -> float:
    """Return by which factor tokens must grow to make up for a loss that is so much higher.

    Infinite where no number of tokens does.

    >>> extra_tokens(1e12, 0.0), round(extra_tokens(1e12, 0.01), 2)
    (1.0, 1.23)
    """
    left = _B / tokens**_BETA
    return math.exp(-math.log1p(-penalty / left) / _BETA) if penalty < left else math.inf


def run_over_sites(training: Training, sites: Sites) -> RunOverSites:
    """Return the run in both ways.

    Raises:
        ConfigError: The devices cannot be divided so.
    """
    model, layout = training.model, training.layout
    if not isinstance(model, Transformer):
        raise ArgumentError(f"sites are for transformers, and {model.name} is none; leave `num_sites` out")
    batch = training.step.num_samples
    if layout.dp % sites.num_sites:  # the batch is a multiple of the replicas
        raise ArgumentError(
            f"{sites.num_sites} sites do not divide the {layout.dp} replicas; write another `num_sites`, or degrees "
            "that leave a multiple of it as replicas"
        )
    one_site, one_layout = _of_a_site(training, sites)
    try:
        step = estimate_step(
            model, one_layout, one_site, global_batch=batch // sites.num_sites, constants=training.constants
        )
    except ConfigError as error:
        raise ConfigError(f"on one of {sites.num_sites} sites: {error}") from None
    ways = (_every_step(training, sites, step), _local_steps(training, sites, step))
    return RunOverSites(sites=sites, together=training, ways=ways)


def _of_a_site(training: Training, sites: Sites) -> tuple[Machine, Layout]:
    layout, machine = training.layout, training.machine
    devices = machine.num_devices // sites.num_sites
    shard = layout.shard
    dp = layout.dp // sites.num_sites
    if shard is not None and shard >= dp * layout.cp:
        shard = None
    whole = machine.accelerator.own_adapters or devices % machine.devices_per_host == 0
    if machine.devices_per_host > devices or not whole or not machine.accelerator.fills_hosts(devices):
        raise ArgumentError(
            f"{sites.num_sites} sites of {machine.name} would not have whole hosts; write another `num_sites`"
        )
    return of_size(machine, devices), replace(layout, dp=dp, shard=shard)


def _every_step(training: Training, sites: Sites, step: Step) -> WayOverSites:
    layout = training.layout
    num_bytes = layout.gradient_bytes * float(training.model.num_parameters)
    exchange_s = sites.exchange_s(num_bytes)
    micro_batches = training.step.num_samples // (layout.dp * layout.micro_batch)
    beside_s = _BACKWARD * step.total_s / micro_batches if layout.software.overlaps_gradients else 0.0
    waiting_s = max(exchange_s - beside_s, 0.0)
    sent = 2 * (sites.num_sites - 1) / sites.num_sites * num_bytes
    return _way(
        training,
        "every step",
        step_s=step.total_s + waiting_s,
        waiting_s=waiting_s,
        step_bytes=sent,
        hiding_bytes_per_s=sent / max(beside_s, 1e-9),
        goodput=training.goodput.share,
        tokens=(1.0, 1.0),
    )


def _local_steps(training: Training, sites: Sites, step: Step) -> WayOverSites:
    model, period = training.model, sites.local_steps
    num_bytes = sites.exchange_bits / 8 * model.num_parameters / sites.num_fragments
    fragment_s = sites.exchange_s(num_bytes)
    # each fragment may take τ steps beside computing, and all of them the H steps of a round
    late_s = sites.num_fragments * max(fragment_s - sites.overlapped_steps * step.total_s, 0.0)
    waiting_s = max(late_s, sites.num_fragments * fragment_s - period * step.total_s, 0.0) / period
    sent = 2 * (sites.num_sites - 1) / sites.num_sites * num_bytes
    devices = FailingDevices(
        device_mtbf_s=training.machine.num_devices * training.goodput.mtbf_s,
        checkpoint_s=training.goodput.checkpoint_s,
        restart_s=training.conditions.restart_s,
        replica_devices=training.layout.tp * training.layout.pp * training.layout.cp,
        round_s=period * (step.total_s + waiting_s),
        exchange_s=0.0,  # it is in the step's time
    )
    groups = ways_to_go_on(devices, training.machine.num_devices, num_groups=(sites.num_sites,))
    penalty = loss_penalty(model.num_parameters, local_steps=period)
    most = loss_penalty(min(model.num_parameters, _PENALTY_PARAMETERS), local_steps=period)
    window = min(sites.overlapped_steps, period / sites.num_fragments) * step.total_s
    return _way(
        training,
        f"{period} local steps",
        step_s=step.total_s + waiting_s,
        waiting_s=waiting_s,
        step_bytes=sent * sites.num_fragments / period,
        hiding_bytes_per_s=sent / window if window else math.inf,
        goodput=groups[-1].share,
        tokens=(extra_tokens(training.tokens, penalty), extra_tokens(training.tokens, most)),
    )


def _way(
    training: Training, name: str, *, tokens: tuple[float, float], goodput: float, step_s: float, **other: float
) -> WayOverSites:
    total_s = training.num_steps * step_s / goodput * tokens[0]
    return WayOverSites(
        name=name,
        step_s=step_s,
        goodput=goodput,
        more_tokens=tokens[0],
        most_more_tokens=tokens[1],
        total_s=total_s,
        cost=training.cost * total_s / training.total_s,
        **other,
    )
