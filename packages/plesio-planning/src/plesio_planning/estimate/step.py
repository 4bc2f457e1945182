"""Seconds of a training step, from its parts.

A replica's micro-batches go through p stages. The slowest stage, the last one if the output matrix makes it so,
decides the pace; while the pipeline fills and drains it waits for one micro-batch in every other stage, divided by the
v parts of an interleaved pipeline (Narayanan et al. 2021, section 2.2):

    step = m x slowest stage + (all stages - slowest stage) / v + sends + exposed gradients + optimizer

A stage's time is that of its layers (`plesio_planning.estimate.layer`). A layer's data-parallel gradient is ready when
its backward pass ends; the link takes one after the other, and what is left when the last layer has ended is exposed.
ZeRO 3 gathers a layer's weights while the one before computes. Communication beside computing slows it down, as both
use the device's multiprocessors and its memory: the more, the more of a host's adapters a ring drives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from plesio_planning.activations import boundary_bytes
from plesio_planning.estimate.communication import DeviceGroup, exposed_in_turn_s
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.kernels import Kernels, head_times
from plesio_planning.estimate.layer import Layer, both_ways, mean_layer, time_layer
from plesio_planning.estimate.layout import Layout, LayoutRecomputation, check_layout
from plesio_planning.estimate.memory import fullest_stage, layers_of_stage, stage_parameters
from plesio_planning.estimate.model import Convolutional, Model, Transformer

_OPTIMIZER_BYTES = 46.0
"""Read and written a parameter: Adam's states and master weight (24), gradient and weight (6), and the gradient once
more for its norm (4), its scale (8) and its removal (4)."""
_STATE_BYTES = 14.0
"""The least that stays of a parameter: weight, gradient, and Adam's states with a master weight's remainder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step's seconds, and what they mean.

    Attributes:
        matrix_s: Matrix products outside of attention.
        attention_s: Scores, softmax and the sum over values.
        elements_s: Norms, activations, dropout, residuals, the loss.
        recompute_s: Computing done anew, with its exchanges.
        tensor_s: Tensor-parallel exchanges that nothing hides.
        context_s: Context-parallel ones.
        expert_s: Exchanges of experts.
        launch_s: Waiting for the host to start operations that are too short for it.
        offload_s: Waiting for activations that are in the host's memory.
        send_s: Sends between stages.
        bubble_s: Waiting for the pipeline to fill and to drain.
        gradient_s: Data-parallel exchanges that nothing hides, and what the others cost the computing.
        model_flops: FLOPs of the step, of all devices.
        hardware_flops: FLOPs with those computed anew.
        peak_flops_per_s: Peak of all devices together.
        num_samples: Sequences (or images).
    """

    matrix_s: float
    attention_s: float
    elements_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    launch_s: float
    offload_s: float
    send_s: float
    bubble_s: float
    gradient_s: float
    optimizer_s: float
    model_flops: float
    hardware_flops: float
    peak_flops_per_s: float
    num_samples: int
    num_tokens: int

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds that add up to the step."""
        return {field.name[:-2]: getattr(self, field.name) for field in fields(self) if field.name in _PARTS}

    @property
    def total_s(self) -> float:
        """Seconds of the step."""
        return sum(self.parts.values())

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: model FLOPs of a second over the peak (Chowdhery et al. 2022, appendix B)."""
        return self.model_flops / self.total_s / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: with what is computed anew."""
        return self.hardware_flops / self.total_s / self.peak_flops_per_s

    @property
    def sample_s(self) -> float:
        """Seconds of the step for each of its sequences (or images)."""
        return self.total_s / self.num_samples

    @property
    def samples_per_s(self) -> float:
        """Sequences (or images) a second."""
        return self.num_samples / self.total_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.total_s


_PARTS = tuple(each.name for each in fields(Step) if each.name.endswith("_s") and not each.name.endswith("per_s"))


def estimate_step(
    model: Model, layout: Layout, machine: Machine, *, global_batch: int, constants: Constants = CONSTANTS
) -> Step:
    """Time of a step and its parts.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> from plesio_planning.estimate.named_models import find_model
    >>> layout = Layout(tp=8, pp=8, vpp=3, recomputation="selective", sequence_parallel=True)
    >>> step = estimate_step(find_model("gpt3-175b"), layout, parse_machine("64xa100"), global_batch=64)
    >>> 0.3 < step.mfu < 0.6
    True

    Args:
        model: Model to train.
        layout: How.
        machine: Machine to run on.
        global_batch: Sequences (or images) of a step.
        constants: How close devices come to their data sheets.

    Raises:
        ConfigError: The model cannot be laid out so.
    """
    num_micro_batches = check_layout(model, layout, machine, global_batch=global_batch)
    seconds = step_timer(model, machine, constants).step_s(layout, num_micro_batches)
    return step_of(model, layout, machine, seconds, global_batch=global_batch)


def step_of(model: Model, layout: Layout, machine: Machine, seconds: Mapping[str, float], *, global_batch: int) -> Step:
    """Return the step whose parts take so many seconds; parts that are left out take none."""
    return Step(
        **{name: seconds.get(name, 0.0) for name in _PARTS},
        model_flops=global_batch * model.model_flops,
        hardware_flops=global_batch * _hardware_flops(model, layout),
        peak_flops_per_s=machine.num_devices * machine.accelerator.peak(layout.precision),
        num_samples=global_batch,
        num_tokens=global_batch * model.tokens_per_sample,
    )


def _hardware_flops(model: Model, layout: Layout) -> float:
    every = model.hardware_flops(layout.recomputation)
    if layout.recomputed_layers is None:
        return every
    share = layout.recomputed_layers / -(-model.num_layers // layout.pp)
    return model.model_flops + share * (every - model.model_flops)


class StepTimer:
    """Times steps of a model on a machine, and keeps what layouts have in common."""

    def __init__(self, model: Transformer, machine: Machine, constants: Constants = CONSTANTS) -> None:
        self.model, self.machine, self.constants = model, machine, constants
        # TPUs have engines of their own for exchanges
        self._contention = 0.0 if machine.accelerator.exchanges_apart else constants.contention
        self._groups: dict[tuple[int, int, bool], DeviceGroup] = {}
        self._layers: dict[tuple[object, ...], Layer] = {}
        self._heads: dict[tuple[object, ...], dict[str, float]] = {}
        self._exchanges: dict[tuple[object, ...], tuple[float, float, float, float]] = {}
        self._parameters: dict[tuple[int, ...], tuple[float, float]] = {}

    def step_s(self, layout: Layout, num_micro_batches: int) -> dict[str, float]:
        """Return the seconds of a step by part, for a layout that has been checked."""
        return self.pipeline_s(layout, num_micro_batches) | self.replicas_s(layout, num_micro_batches)

    def pace_s(self, layout: Layout) -> float:
        """Return the seconds of the slowest stage and a micro-batch: less than a step's share of one."""
        return self._slowest(layout)[0]

    def pipeline_s(self, layout: Layout, num_micro_batches: int) -> dict[str, float]:
        """Return the seconds until all micro-batches have gone through, by part: those of a step but for replicas."""
        layer, head = self.layer(layout), self._head(layout)
        slowest_s, layers, last_decides = self._slowest(layout)
        seconds = {name: num_micro_batches * layers * value for name, value in layer.parts.items()}
        if last_decides:
            for name, value in head.items():
                seconds[name] += num_micro_batches * value
        seconds["bubble_s"] = self._waiting_s(layout, slowest_s)
        seconds["send_s"] = self._sends_s(layout, num_micro_batches)
        return seconds

    def state_bytes(self, layout: Layout) -> float:
        """Return bytes of a device's part of the model with its optimizer, as if replicas shared nothing of it."""
        return _STATE_BYTES * sum(parameters for parameters, *_ in self._replicated(layout))

    def whole_pipeline_s(self, layout: Layout, num_micro_batches: int) -> float:
        """Return the sum of `pipeline_s`, from the slowest stage instead of its parts."""
        slowest_s, _, _ = self._slowest(layout)
        waiting_s = self._waiting_s(layout, slowest_s)
        return num_micro_batches * slowest_s + waiting_s + self._sends_s(layout, num_micro_batches)

    def _waiting_s(self, layout: Layout, slowest_s: float) -> float:
        if layout.pp == 1:
            return 0.0
        layer = self.layer(layout)
        all_s = self.model.num_layers * layer.total_s + self._head_s(layout)
        return _waiting_share(layout, layer) * max(all_s - slowest_s, 0.0) / layout.vpp

    def _head_s(self, layout: Layout) -> float:
        return sum(self._head(layout).values())

    def replicas_s(self, layout: Layout, num_micro_batches: int) -> dict[str, float]:
        """Return the seconds that replicas add, by part: exchanges of gradients, and the optimizer."""
        gradient_s = self._gradients_s(layout, num_micro_batches)
        return {"gradient_s": gradient_s, "optimizer_s": self._optimizer_s(layout)}

    def layer(self, layout: Layout) -> Layer:
        """Return the seconds of the mean layer."""
        again = self._layer(layout, layout.recomputation)
        if layout.recomputed_layers is None:
            return again
        share = layout.recomputed_layers / -(-self.model.num_layers // layout.pp)
        return mean_layer(self._layer(layout, "none"), again, share=share)

    def _layer(self, layout: Layout, recomputation: LayoutRecomputation) -> Layer:
        key = (*_shared(layout), layout.ep, layout.expert_tp, recomputation, layout.offload_activations)
        if (known := self._layers.get(key)) is None:
            known = self._layers[key] = time_layer(
                self.model,
                layout if layout.recomputation == recomputation else replace(layout, recomputation=recomputation),
                self._kernels(layout),
                self.constants,
                group=self._group,
                contention=self._contention,
            )
        return known

    def _head(self, layout: Layout) -> dict[str, float]:
        key = _shared(layout)
        if (known := self._heads.get(key)) is None:
            known = self._heads[key] = both_ways(head_times(self.model, layout, self._kernels(layout)))
        return known

    def _kernels(self, layout: Layout) -> Kernels:
        return Kernels.of(self.machine, layout, self.constants)

    def _group(self, size: int, stride: int, *, one_adapter: bool = False) -> DeviceGroup:
        key = (size, stride, one_adapter)
        if (known := self._groups.get(key)) is None:
            known = self._groups[key] = DeviceGroup.of(
                self.machine, size=size, stride=stride, constants=self.constants, one_adapter=one_adapter
            )
        return known

    def _slowest(self, layout: Layout) -> tuple[float, int, bool]:
        """Return the seconds of the slowest stage, its layers, and whether it is the last one with the output."""
        layer_s, head_s = self.layer(layout).total_s, self._head_s(layout)
        last = layers_of_stage(self.model, layout, layout.pp - 1)
        most = -(-self.model.num_layers // layout.pp)
        if layout.pp == 1 or last * layer_s + head_s >= most * layer_s:
            return last * layer_s + head_s, last, True
        return most * layer_s, most, False

    def _sends_s(self, layout: Layout, num_micro_batches: int) -> float:
        """Return the seconds of sends that keep a stage waiting: each micro-batch's, or those to fill the pipeline."""
        model = self.model
        if layout.pp == 1:
            return 0.0
        num_bytes = boundary_bytes(
            hidden=model.hidden_size,
            sequence=model.sequence_length // layout.cp,
            batch=layout.micro_batch,
            tensor_parallel=layout.tp,
            sequence_parallel=True,  # without it, Megatron's scatter and gather sends as little
        )
        stride = layout.tp * layout.cp * layout.dp
        num_bytes *= layout.element_bytes / 2
        once_s = self._group(layout.pp, stride).send_s(num_bytes)
        if not layout.sequence_parallel:
            once_s += self._group(layout.tp, 1).all_gather_s(num_bytes * layout.tp)
        filling = 2 * (layout.pp - 1)
        if layout.software.overlaps_pipeline and layout.vpp > 1:
            return filling * once_s
        return (filling + 2 * layout.vpp * num_micro_batches) * once_s

    def _gradients_s(self, layout: Layout, num_micro_batches: int) -> float:
        """Time data-parallel exchanges that nothing hides, and the slowdown of computing by the others."""
        layers = layers_of_stage(self.model, layout, 0)
        exchange_s, gather_s, backward_gather_s, between_s = self._exchanges_s(layout, layers)
        # an interleaved stage does a part of its layers for p micro-batches before it goes on to the next part
        turns = min(layout.pp, num_micro_batches) if layout.vpp > 1 else 1
        rounds = num_micro_batches / turns if layout.zero >= 2 else 1
        # ZeRO 3 gathers the layers for every micro-batch, forward and again backward, and perhaps to compute them anew
        again = 2 if layout.software.gathers_to_recompute and layout.recomputation == "full" else 1
        # groups add up only when a step ends, whatever they exchanged for each micro-batch
        if not layout.software.overlaps_gradients:
            if layout.zero == 3:
                gather_s = rounds * (gather_s + again * backward_gather_s)
            return rounds * exchange_s + between_s + gather_s
        layer, group = self.layer(layout), self._replicas(layout, layout.sharing, layout.tp)
        slowdown = self._contention * group.driven
        forward_s, backward_s = turns * layer.forward_s, turns * layer.backward_s
        gather_forward_s = _beside_s(gather_s, forward_s, layers=layers, slowdown=slowdown)
        if layout.zero == 3:
            gather_forward_s, backward_gather_s = rounds * gather_forward_s, again * backward_gather_s
        else:
            backward_gather_s = 0.0
        each_s = backward_gather_s + exchange_s
        last_s = _beside_s(each_s + between_s, backward_s, layers=layers, slowdown=slowdown)
        others_s = _beside_s(each_s, backward_s, layers=layers, slowdown=slowdown) if rounds > 1 else 0.0
        return gather_forward_s + last_s + (rounds - 1) * others_s

    def _exchanges_s(self, layout: Layout, layers: int) -> tuple[float, float, float, float]:
        """Time exchanges of gradients, gathers of weights forward and backward, and sums between those that share."""
        degrees = layout.tp, layout.cp, layout.pp, layout.dp, layout.ep, layout.expert_tp
        key = (*degrees, layout.zero == 3, layout.sharing, layout.precision, layout.software)
        if (known := self._exchanges.get(key)) is not None:
            return known
        gradient, weight = float(layout.gradient_bytes), layout.element_bytes
        if layout.zero == 3 and layout.software.quantizes_exchanges:
            gradient, weight = 0.5, 1
        exchange_s = gather_s = backward_gather_s = between_s = 0.0
        for parameters, size, sharing, apart in self._replicated(layout):
            if size == 1 or not parameters:
                continue
            gradients = gradient * parameters / layers
            if sharing > 1:
                group = self._replicas(layout, sharing, apart)
                reduce_s = group.all_reduce_s if layout.software.all_reduces_gradients else group.all_gather_s
                exchange_s += layers * reduce_s(gradients)
                once_s = layers * group.all_gather_s(weight * parameters / layers)
                gather_s += once_s
                if layout.software.gathers_in_host:
                    in_host = max(min(self.machine.devices_per_host // apart, sharing), 1)
                    in_hosts = self._replicas(layout, in_host, apart)
                    once_s = layers * in_hosts.all_gather_s(weight * parameters / layers)
                backward_gather_s += once_s
            if sharing < size:  # groups of those that share add up their parts
                others = self._replicas(layout, size // sharing, apart * sharing)
                between_s += layers * others.all_reduce_s(gradients / sharing)
        known = self._exchanges[key] = exchange_s, gather_s, backward_gather_s, between_s
        return known

    def _replicated(self, layout: Layout) -> tuple[tuple[float, int, int, int], ...]:
        """Return parameters of a device that others have, too: how many do, how many share, and ranks between them."""
        key = layout.tp, layout.pp, layout.ep, layout.expert_tp
        if (known := self._parameters.get(key)) is None:
            fullest = fullest_stage(self.model, layout)
            known = self._parameters[key] = stage_parameters(self.model, layout, fullest)
        dense, experts = known
        return (
            (dense, layout.dp * layout.cp, layout.sharing, layout.tp),
            (experts, layout.expert_replicas, layout.experts_sharing, layout.expert_tp * layout.ep),
        )

    def _replicas(self, layout: Layout, size: int, stride: int) -> DeviceGroup:
        """Return devices with the same part of a stage."""
        return self._group(size, stride, one_adapter=layout.software.one_adapter)

    def _optimizer_s(self, layout: Layout) -> float:
        parameters = sum(each / sharing for each, _, sharing, _ in self._replicated(layout))
        if layout.offload:
            # gradients go to the host, new weights come back, and the host reads and writes all between
            moved = layout.gradient_bytes + layout.element_bytes
            constants = self.constants
            return parameters * (
                moved / constants.host_link_bytes_per_s + _OPTIMIZER_BYTES / constants.host_bytes_per_s
            )
        return parameters * _OPTIMIZER_BYTES / self._kernels(layout).bytes_per_s


def _shared(layout: Layout) -> tuple[object, ...]:
    """Return that on which a layer and the output matrix depend alike."""
    return (layout.tp, layout.cp, layout.sequence_parallel, layout.micro_batch, layout.precision, layout.software)


def _waiting_share(layout: Layout, layer: Layer) -> float:
    """Return the share of the waiting in 1F1B that a schedule leaves.

    Its ``(p-1) (F+B)`` become ``(p-1) (F+B-2W)`` where weights' gradients fill what they can (Qi et al. 2024), and
    ``(p/2-1) (F+2B-3W)`` where micro-batches come from both ends, too (DeepSeek-AI 2024, table 2).
    """
    if layout.schedule == "zero-bubble":
        return max(1 - 2 * layer.weight_gradient_s / layer.total_s, 0.0)
    if layout.schedule == "dualpipe":
        left_s = 2 * layer.total_s - layer.forward_s - 3 * layer.weight_gradient_s
        return (layout.pp / 2 - 1) / (layout.pp - 1) * max(left_s / layer.total_s, 0.0)
    return 1.0


def _beside_s(exchange_s: float, layer_s: float, *, layers: int, slowdown: float) -> float:
    """Seconds that exchanges beside all layers' computing add: what is left over, and what they slow down."""
    exposed_s = exposed_in_turn_s(exchange_s, beside_s=layer_s, parts=layers)
    return exposed_s + slowdown * min(exchange_s, layers * layer_s)


class ConvolutionalTimer:
    """Times steps of a convolutional network, which has replicas only."""

    def __init__(self, model: Convolutional, machine: Machine, constants: Constants = CONSTANTS) -> None:
        self.model, self.machine, self.constants = model, machine, constants

    def pace_s(self, layout: Layout) -> float:
        """Return the seconds of a micro-batch."""
        rate = self.machine.accelerator.peak(layout.precision) * self.constants.convolution_efficiency
        return layout.micro_batch * self.model.model_flops / rate

    def state_bytes(self, layout: Layout) -> float:
        """Return bytes of the model with its optimizer."""
        return _STATE_BYTES * self.model.num_parameters

    def whole_pipeline_s(self, layout: Layout, num_micro_batches: int) -> float:
        """Return the sum of `pipeline_s`."""
        return num_micro_batches * self.pace_s(layout)

    def pipeline_s(self, layout: Layout, num_micro_batches: int) -> dict[str, float]:
        """Return the seconds of all micro-batches, by part: those of a step but for replicas."""
        return {"matrix_s": num_micro_batches * self.pace_s(layout)}

    def step_s(self, layout: Layout, num_micro_batches: int) -> dict[str, float]:
        """Return the seconds of a step by part, for a layout that has been checked."""
        return self.pipeline_s(layout, num_micro_batches) | self.replicas_s(layout, num_micro_batches)

    def replicas_s(self, layout: Layout, num_micro_batches: int) -> dict[str, float]:
        """Return the seconds that replicas add, by part, after any number of micro-batches."""
        model, machine = self.model, self.machine
        group = DeviceGroup.of(machine, size=layout.dp, stride=1, constants=self.constants)
        exchange_s = group.all_reduce_s(layout.gradient_bytes * model.num_parameters)
        if layout.software.overlaps_gradients:
            backward_s = 2 / 3 * self.pace_s(layout) / model.num_layers
            exchange_s = exposed_in_turn_s(exchange_s, beside_s=backward_s, parts=model.num_layers)
        bytes_per_s = machine.accelerator.memory_bytes_per_s * self.constants.memory_efficiency
        return {"gradient_s": exchange_s, "optimizer_s": model.num_parameters * _OPTIMIZER_BYTES / bytes_per_s}


def step_timer(model: Model, machine: Machine, constants: Constants = CONSTANTS) -> StepTimer | ConvolutionalTimer:
    """Return the timer of a model."""
    if isinstance(model, Convolutional):
        return ConvolutionalTimer(model, machine, constants)
    return StepTimer(model, machine, constants)
