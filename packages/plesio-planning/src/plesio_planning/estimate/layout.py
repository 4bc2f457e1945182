"""How a model is laid out over devices, and whether it can be.

Ranks are numbered as Megatron does: tensor parallelism varies fastest, then context, data, and pipeline parallelism
(Narayanan et al. 2021, section 3), so the devices of a tensor-parallel group are neighbours. Expert parallelism takes
its groups from those of data (and context) parallelism and needs no devices of its own.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from plesio.core.errors import ArgumentError, nearest
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.model import Convolutional, Model, Transformer
from plesio_planning.texts import read_texts

SoftwareName = Literal[
    "current",
    "megatron-core",
    "megatron-2022",
    "megatron-2021",
    "megatron-deepspeed-2022",
    "fsdp-2023",
    "deepspeed-2021",
]


LayoutRecomputation = Literal["none", "partial", "selective", "full"]
Schedule = Literal["1f1b", "zero-bubble", "dualpipe"]
_CHOICES = {"recomputation": get_args(LayoutRecomputation), "schedule": get_args(Schedule)}
_COUNTS = ("tp", "pp", "vpp", "dp", "ep", "etp", "cp", "shard", "recomputed_layers", "micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The operations that a training program fuses or does at the same time.

    Attributes:
        fused_attention: Scores stay in the chip, and the backward pass computes them anew (Dao et al. 2022).
        flash_attention_1: It does so with FlashAttention's first version, which also lacks Hopper's instructions.
        hopper_attention: On Hopper it uses its asynchronous instructions (FlashAttention's third version, cuDNN).
        eager: Operations on elements run one by one, none fused with another, as PyTorch does without compiling.
        fused_gradient_addition: A matrix product adds to the gradient of earlier micro-batches.
        overlaps_tensor: The backward pass reduces a tensor-parallel gradient while it computes that of the weights.
        splits_tensor: Tensor-parallel exchanges go on, in as many parts as there are devices, beside their products.
        overlaps_gradients: Data-parallel exchanges go on beside the computing: gradients during the last micro-batch's
            backward pass, and what ZeRO 3 gathers one layer ahead.
        overlaps_pipeline: Stages exchange while they compute.
        overlaps_experts: Experts' exchanges go on beside computing of other micro-batches.
        routes_by_host: A token for experts goes to each host once, and there in FP8 where products are.
        groups_experts: One kernel multiplies for all experts of a device.
        gathers_to_recompute: ZeRO 3 gathers a layer's weights once more to compute it anew.
        all_reduces_gradients: Replicas reduce whole gradients, also where each needs only a part of them.
        delays_weight_gradients: It computes weights' gradients when it would wait, so that pipelines may have another
            order than the usual one.
        synchronizes: A device waits for its host at every layer of a micro-batch.
        quantizes_exchanges: ZeRO 3 gathers weights in a byte an element, and reduces gradients in half a byte (ZeRO++'s
            qwZ and qgZ; Wang et al. 2023).
        gathers_in_host: ZeRO 3 keeps what a host gathered, so that the backward pass gathers there (ZeRO++'s hpZ).
        one_adapter: Data-parallel exchanges use one adapter of a host at a time.
        gradient_bytes: Bytes of a gradient that is kept and exchanged.
        master_weight_remainders: Only those 2 bytes of a master weight are kept that its BF16 weight lacks.
    """

    fused_attention: bool = True
    flash_attention_1: bool = False
    hopper_attention: bool = True
    eager: bool = False
    fused_gradient_addition: bool = True
    overlaps_tensor: bool = True
    splits_tensor: bool = False
    overlaps_gradients: bool = True
    overlaps_pipeline: bool = True
    overlaps_experts: bool = False
    routes_by_host: bool = False
    groups_experts: bool = False
    gathers_to_recompute: bool = False
    all_reduces_gradients: bool = False
    delays_weight_gradients: bool = False
    synchronizes: bool = False
    quantizes_exchanges: bool = False
    gathers_in_host: bool = False
    one_adapter: bool = False
    gradient_bytes: int = 4
    master_weight_remainders: bool = False

    def __hash__(self) -> int:
        return hash((self.gradient_bytes, self.fused_attention, self.splits_tensor, self.eager, self.overlaps_experts))


SOFTWARE: Mapping[SoftwareName, Software] = {
    name: Software(**settings)  # type: ignore[misc]
    for name, settings in read_texts("software", package="plesio_planning.estimate").items()
}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism, and what else decides time and memory.

    Attributes:
        tp: Tensor parallelism: devices that share every layer.
        pp: Pipeline parallelism: stages.
        vpp: Parts of a stage's layers in an interleaved pipeline; 1 is none.
        dp: Data parallelism: replicas.
        ep: Expert parallelism: devices that share the experts.
        etp: Devices that share an expert; else `tp`, or 1 where `ep` takes those devices, too.
        cp: Context parallelism: devices that share every sequence.
        zero: Parts that replicas share: 0 nothing, 1 the optimizer's state, 2 gradients, too, 3 parameters, too.
        shard: Neighbouring replicas among which ZeRO shares, while each such group holds the same (hybrid sharding,
            HSDP); else all replicas.
        sequence_parallel: The parts that tensor parallelism leaves whole are shared along the sequence.
        recomputation: Parts that the backward pass computes again instead of keeping them: attention's core
            (selective), all but a layer's input (full), or norms, activations and the expansions of latent attention
            (partial).
        recomputed_layers: Layers of a stage to which that applies; else all.
        offload: Whether the optimizer's state is in its host's memory, and the host updates the weights.
        offload_activations: Whether activations wait in the host's memory for the backward pass.
        schedule: Order of a pipeline's micro-batches: one forward and one backward (1f1b), weights' gradients later
            (zero-bubble; Qi et al. 2024, ZB-H1), or from both ends (dualpipe; DeepSeek-AI 2024).
        micro_batch: Sequences of a replica at a time.
        precision: Precision of matrix products: fp32, tf32, fp16, bf16, fp8.
        software: As in `SOFTWARE`.

    >>> Layout(tp=8, pp=4, dp=2).num_devices
    64
    """

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int | None = None
    cp: int = 1
    zero: int = 0
    shard: int | None = None
    sequence_parallel: bool = False
    recomputation: LayoutRecomputation = "none"
    recomputed_layers: int | None = None
    offload: bool = False
    offload_activations: bool = False
    schedule: Schedule = "1f1b"
    micro_batch: int = 1
    precision: str = "bf16"
    software: Software = SOFTWARE["current"]

    def __post_init__(self) -> None:
        for what in _COUNTS:
            number = getattr(self, what)
            if number is not None and number < 1:
                raise ArgumentError(f"`{what}` is {number}; write 1 or more")
        if self.zero not in range(4):
            raise ArgumentError(f"`zero` is {self.zero}; write 0, 1, 2 or 3")
        for what, choices in _CHOICES.items():
            if getattr(self, what) not in choices:
                raise ArgumentError(
                    f'unknown `{what}` "{getattr(self, what)}"; {nearest(getattr(self, what), choices)}'
                )

    @property
    def num_devices(self) -> int:
        """``tp cp dp pp``."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Devices that share an expert."""
        if self.etp is not None:
            return self.etp
        return self.tp if self.dp * self.cp % self.ep == 0 else 1

    @property
    def expert_replicas(self) -> int:
        """Devices of a stage with the same part of the same experts."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @property
    def sharing(self) -> int:
        """Replicas among which ZeRO shares: 1 without it."""
        return 1 if self.zero == 0 else self.shard or self.dp * self.cp

    @property
    def experts_sharing(self) -> int:
        """The same of a part of the experts, of which there are fewer replicas."""
        return max(self.sharing * self.expert_replicas // (self.dp * self.cp), 1)

    @property
    def batch_unit(self) -> int:
        """Sequences of which a batch is a multiple: what micro-batches of all replicas have at a time."""
        at_a_time = self.pp if self.vpp > 1 else 2 if self.schedule == "dualpipe" else 1
        return self.dp * self.micro_batch * at_a_time

    @property
    def full_precision(self) -> bool:
        """True if weights and gradients are in FP32."""
        return self.precision in ("fp32", "tf32")

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient: the software's in mixed precision."""
        return 4 if self.full_precision else self.software.gradient_bytes

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or an activation outside of FP8 products."""
        return 4 if self.full_precision else 2

    @property
    def keeps_remainders(self) -> bool:
        """True if a master weight is kept only as the difference to its BF16 weight."""
        return self.software.master_weight_remainders and not self.full_precision


def lean(layout: Layout) -> Layout:
    """Return the same with a program that keeps gradients in BF16 and master weights as remainders."""
    return varied(layout, software=_lean(layout.software))


@functools.cache
def _lean(software: Software) -> Software:
    return replace(software, gradient_bytes=2, master_weight_remainders=True)


def varied(layout: Layout, **changes: Any) -> Layout:
    """Return the layout with other values that are known to be possible, so that nothing is checked again."""
    found = object.__new__(Layout)
    for name in _NAMES:
        object.__setattr__(found, name, changes[name] if name in changes else getattr(layout, name))
    return found


_NAMES = tuple(field.name for field in fields(Layout))


def check_layout(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> int:
    """Make sure that the model can be trained so, and return the micro-batches of a replica in a step.

    Raises:
        ConfigError: It cannot. One line that says what can.
    """
    machine.accelerator.peak(layout.precision)
    if isinstance(model, Convolutional):
        _check_convolutional(model, layout)
    else:
        _check_transformer(model, layout)
    if layout.num_devices != machine.num_devices:
        raise ArgumentError(
            f"`tp` {layout.tp} x `cp` {layout.cp} x `pp` {layout.pp} x `dp` {layout.dp} are {layout.num_devices} "
            f"devices, and {machine.name} has {machine.num_devices}; {_dp_that_fits(layout, machine)}"
        )
    if layout.shard is not None and (layout.zero == 0 or layout.dp * layout.cp % layout.shard):
        raise ArgumentError(
            f"`shard` {layout.shard} is of ZeRO among {layout.dp * layout.cp} replicas; write a divisor of them, and "
            "`zero = 1` or more"
        )
    per_step = layout.dp * layout.micro_batch
    if global_batch < 1 or global_batch % per_step:
        below = max(global_batch // per_step, 1) * per_step
        raise ArgumentError(
            f"`global_batch` is {global_batch}, no multiple of `dp` {layout.dp} x `micro_batch` {layout.micro_batch}; "
            f"write {below} or {below + per_step}"
        )
    num_micro_batches = global_batch // per_step
    if layout.vpp > 1 and num_micro_batches % layout.pp:
        raise ArgumentError(
            f"an interleaved pipeline of {layout.pp} stages takes as many micro-batches at a time, and a step has "
            f"{num_micro_batches}; write `vpp = 1`, or for `global_batch` a multiple of {layout.pp * per_step}"
        )
    if layout.schedule == "dualpipe" and (num_micro_batches % 2 or num_micro_batches < 2 * layout.pp):
        raise ArgumentError(
            f"`schedule` dualpipe takes an even number of micro-batches, at least twice its {layout.pp} stages, and a "
            f"step has {num_micro_batches}; write for `global_batch` a multiple of {2 * per_step}, at least "
            f"{2 * layout.pp * per_step}"
        )
    return num_micro_batches


def _dp_that_fits(layout: Layout, machine: Machine) -> str:
    replica = layout.tp * layout.cp * layout.pp
    if machine.num_devices % replica == 0:
        return f"write `dp = {machine.num_devices // replica}`"
    return f"write degrees whose product is {machine.num_devices}"


_OF_TRANSFORMERS = (
    *("tp", "pp", "vpp", "ep", "etp", "cp", "recomputation", "recomputed_layers", "offload", "offload_activations"),
    "schedule",
)
"""Attributes of which a convolutional network leaves no choice."""


def _check_convolutional(model: Convolutional, layout: Layout) -> None:
    usual = Layout()
    others = [f"`{name}`" for name in _OF_TRANSFORMERS if getattr(layout, name) != getattr(usual, name)]
    if others:
        raise ArgumentError(
            f"{model.name} is trained data parallel only, with all its activations and its optimizer in the device; "
            f"leave {', '.join(others)} out"
        )


def _check_transformer(model: Transformer, layout: Layout) -> None:
    _check_divides(layout.tp, model.num_heads, degree="tp", what="attention heads", name=model.name)
    for size in {model.ffn_size, model.shared_ffn_size, model.dense_ffn_size}:
        _check_divides(layout.tp, size, degree="tp", what="columns of a feed-forward matrix", name=model.name)
    if model.num_kv_heads % layout.tp and layout.tp % model.num_kv_heads:
        raise ArgumentError(
            f"`tp` {layout.tp} and the {model.num_kv_heads} heads of keys and values of {model.name} do not divide one "
            f"another; write `tp = {model.num_kv_heads}`, or a divisor or a multiple of it"
        )
    _check_divides(layout.cp, model.sequence_length, degree="cp", what="tokens of a sequence", name=model.name)
    _check_divides(layout.ep, model.num_experts, degree="ep", what="experts", name=model.name)
    devices = layout.tp * layout.dp * layout.cp
    if devices % (layout.ep * layout.expert_tp):
        raise ArgumentError(
            f"`ep` {layout.ep} x `etp` {layout.expert_tp} does not divide the {devices} devices of a stage, which "
            "share the experts; write degrees whose product does"
        )
    if layout.etp is not None:
        if model.num_experts == 1:
            raise ArgumentError(f"`etp` is of experts, and {model.name} has none; leave it out")
        _check_divides(layout.etp, model.ffn_size, degree="etp", what="columns of an expert's matrix", name=model.name)
    if layout.cp > 1 and not layout.software.fused_attention:
        raise ArgumentError(
            f"`cp` {layout.cp} is for fused attention; write `cp = 1`, or `software` with fused attention"
        )
    if layout.sequence_parallel and layout.tp == 1:
        raise ArgumentError(
            "sequence parallelism is among tensor-parallel devices; write `tp = 2` or more, or leave it out"
        )
    if layout.pp > model.num_layers:
        raise ArgumentError(
            f"`pp` {layout.pp} are more stages than the {model.num_layers} layers of {model.name}; "
            f"write `pp = {model.num_layers}` or less"
        )
    layers = -(-model.num_layers // layout.pp)
    _check_divides(layout.vpp, layers, degree="vpp", what="layers of a stage", name=model.name)
    if layout.recomputed_layers is not None and (layout.recomputation == "none" or layout.recomputed_layers > layers):
        raise ArgumentError(
            f"`recomputed_layers` is {layout.recomputed_layers} of the {layers} layers of a stage; write {layers} or "
            "less, and a `recomputation`"
        )
    if layout.vpp > 1 and layout.pp == 1:
        raise ArgumentError(
            f"`vpp` {layout.vpp} interleaves the stages of a pipeline; write `vpp = 1`, or `pp = 2` or more"
        )
    if layout.schedule != "1f1b" and (layout.pp == 1 or layout.vpp > 1):
        raise ArgumentError(
            f"`schedule` {layout.schedule} is of a pipeline that is not interleaved; write `pp = 2` or more "
            "and `vpp = 1`"
        )
    if layout.schedule != "1f1b" and not layout.software.delays_weight_gradients:
        raise ArgumentError(
            f"`schedule` {layout.schedule} is of a program that delays weights' gradients; write `schedule = 1f1b`, or "
            "`delays_weight_gradients`"
        )
    if layout.schedule == "dualpipe" and layout.pp % 2:
        raise ArgumentError(
            f"`schedule` dualpipe has two ends of stages, and `pp` is {layout.pp}; write {layout.pp - 1} or "
            f"{layout.pp + 1}"
        )
    if layout.zero == 3 and layout.pp > 1:
        raise ArgumentError(
            "`zero` 3 would gather a stage for every micro-batch; write `zero = 2` or less, or `pp = 1`"
        )


def _check_divides(value: int, number: int, *, degree: str, what: str, name: str) -> None:
    if number % value:
        divisors = [divisor for divisor in range(1, min(number, 2 * value) + 1) if number % divisor == 0]
        nearby = sorted(sorted(divisors, key=lambda divisor: abs(divisor - value))[:2])
        raise ArgumentError(
            f"`{degree}` {value} does not divide the {number} {what} of {name}; "
            f"write {' or '.join(str(divisor) for divisor in nearby)}"
        )
