"""The layouts that a search tries, in families that share their layers' times.

The space: tensor parallelism inside a host (beyond it the slow network would carry every layer's exchanges; Narayanan
et al. 2021, section 3.2), context parallelism down to 1,024 tokens a device, every number of stages and of their parts
or other order of them that the program has, experts over replicas, replicas from what devices remain, micro-batches of
powers of two up to 16 sequences, every stage of ZeRO (the third also among 1 to 16 hosts, as HSDP), every recomputation
(but for the selective one where attention is fused, which does the same). Sequence parallelism is used wherever there
is tensor parallelism, as it costs nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, LayoutRecomputation, Schedule, Software, varied
from plesio_planning.estimate.model import Convolutional, Model

NEAR = 2.0
"""Largest factor between the batch that is wanted and another one."""

_LARGEST_MICRO_BATCH = 16
_SHORTEST_CONTEXT = 1024
_SHARD_DOUBLINGS = 4
_NOT_SEARCHED = ("etp", "recomputed_layers", "offload", "offload_activations")
"""All layouts have these where they are given, or the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Layouts that differ in the order of stages, in what replicas share and in what is computed again.

    Attributes:
        plain: The one with the usual order, the first recomputation, and nothing shared; perhaps not one of them.
        recomputations: The cheapest first.
        pipelines: Parts of a stage, with the order.
        shares: Stages of ZeRO, with the replicas that share.
    """

    plain: Layout
    recomputations: tuple[LayoutRecomputation, ...]
    pipelines: tuple[tuple[int, Schedule], ...]
    shares: tuple[tuple[int, int | None], ...]

    @classmethod
    def of_one(cls, layout: Layout) -> "Family":
        """Return the family of a layout alone."""
        return cls(
            plain=varied(layout, vpp=1, schedule="1f1b", zero=0, shard=None),
            recomputations=(layout.recomputation,),
            pipelines=((layout.vpp, layout.schedule),),
            shares=((layout.zero, layout.shard),),
        )

    def __len__(self) -> int:
        return len(self.recomputations) * len(self.pipelines) * len(self.shares)

    def ordered(self, pipeline: tuple[int, Schedule]) -> Iterator[Layout]:
        """Yield the layouts with this order, and with the first recomputation."""
        vpp, schedule = pipeline
        for zero, shard in self.shares:
            yield varied(self.plain, vpp=vpp, schedule=schedule, zero=zero, shard=shard)


def layouts_of(
    model: Model, machine: Machine, *, global_batch: int, near: bool = False, fixed: Mapping[str, Any] | None = None
) -> Iterator[Layout]:
    """Return all layouts of the space, among them such that `plesio_planning.estimate.layout.check_layout` refuses."""
    for family in families_of(model, machine, global_batch=global_batch, near=near, fixed=fixed or {}):
        for pipeline in family.pipelines:
            for layout in family.ordered(pipeline):
                yield from (varied(layout, recomputation=how) for how in family.recomputations)


def families_of(
    model: Model, machine: Machine, *, global_batch: int, near: bool, fixed: Mapping[str, Any]
) -> Iterator[Family]:
    """Return all families of the space.

    Args:
        model: Model to train.
        machine: Machine to run on.
        global_batch: Sequences (or images) of a step.
        near: Whether it may be another, up to `NEAR` times as large.
        fixed: Attributes of `Layout` that are not searched, with their values.
    """
    largest_batch = int(NEAR * global_batch) if near else global_batch
    software = fixed.get("software", SOFTWARE["current"])

    def some(name: str, values: Iterator[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
        return (fixed[name],) if name in fixed else tuple(values)

    devices = machine.num_devices
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    if not isinstance(model, Convolutional):
        sizes = {
            "tp": min(machine.devices_per_host, model.num_heads),
            "pp": model.num_layers,
            "cp": max(model.sequence_length // _SHORTEST_CONTEXT, 1),
            "ep": model.num_experts,
        }
    recomputations = some("recomputation", _recomputations(model, software))
    # degrees that multiply to the number of devices, data parallelism being the rest
    for tp, pp, cp in product(
        some("tp", _divisors(devices, sizes["tp"])),
        some("pp", _divisors(devices, sizes["pp"])),
        some("cp", _divisors(devices, sizes["cp"])),
    ):
        dp = devices // (tp * pp * cp)
        if not dp or dp * tp * pp * cp != devices or fixed.get("dp", dp) != dp:
            continue
        pipelines = tuple(_pipelines(model, pp, software, fixed))
        shares = tuple(_shares(machine, fixed, tp=tp, pp=pp, replicas=dp * cp))
        for ep, micro_batch in product(
            some("ep", _divisors(dp * cp, sizes["ep"])), some("micro_batch", _micro_batches(largest_batch // dp))
        ):
            plain = Layout(
                tp=tp,
                pp=pp,
                dp=dp,
                ep=ep,
                cp=cp,
                sequence_parallel=tp > 1 and fixed.get("sequence_parallel", True),
                recomputation=recomputations[0],
                micro_batch=micro_batch,
                **{name: fixed[name] for name in _NOT_SEARCHED if name in fixed},
                precision=fixed.get("precision", "bf16"),
                software=software,
            )
            yield Family(plain=plain, recomputations=recomputations, pipelines=pipelines, shares=shares)


def _recomputations(model: Model, software: Software) -> tuple[LayoutRecomputation, ...]:
    if isinstance(model, Convolutional):
        return ("none",)
    return ("none", "partial", "full") if software.fused_attention else ("none", "selective", "full")


def _pipelines(model: Model, pp: int, software: Software, fixed: Mapping[str, Any]) -> Iterator[tuple[int, Schedule]]:
    """Yield parts of a stage with orders; only a pipeline has stages to be interleaved, or done in another order."""
    layers = 1 if pp == 1 or isinstance(model, Convolutional) else -(-model.num_layers // pp)
    vpps = (fixed["vpp"],) if "vpp" in fixed else tuple(_divisors(layers, layers))
    if "schedule" in fixed:
        # one that is not the usual one has whole stages
        usual = fixed["schedule"] == "1f1b" or "vpp" in fixed
        yield from ((vpp, fixed["schedule"]) for vpp in (vpps if usual else (1,)))
        return
    yield from ((vpp, "1f1b") for vpp in vpps)
    if 1 in vpps and pp > 1 and software.delays_weight_gradients:
        yield 1, "zero-bubble"
        if pp % 2 == 0:
            yield 1, "dualpipe"


def _shares(
    machine: Machine, fixed: Mapping[str, Any], *, tp: int, pp: int, replicas: int
) -> Iterator[tuple[int, int | None]]:
    """Yield stages of ZeRO; the third, which no pipeline has, also among the replicas of few whole hosts."""
    zeros = (fixed["zero"],) if "zero" in fixed else (0, 1, 2, 3) if pp == 1 else (0, 1, 2)
    a_host = machine.devices_per_host // tp
    for zero in zeros:
        yield zero, fixed.get("shard")
        if zero == 3 and pp == 1 and "shard" not in fixed and a_host:
            shards = (a_host << power for power in range(_SHARD_DOUBLINGS + 1))
            yield from ((zero, shard) for shard in shards if shard < replicas and replicas % shard == 0)


def _divisors(number: int, most: int) -> Iterator[int]:
    return (value for value in range(1, min(number, most) + 1) if number % value == 0)


def _micro_batches(most: int) -> Iterator[int]:
    micro_batch = 1
    while micro_batch <= min(most, _LARGEST_MICRO_BATCH):
        yield micro_batch
        micro_batch *= 2
