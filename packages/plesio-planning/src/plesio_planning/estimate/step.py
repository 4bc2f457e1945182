"""Seconds of a training step, from its parts.

A replica's micro-batches go through p stages. The slowest stage, the last one if the output matrix makes it so,
decides the pace; while the pipeline fills and drains it waits for one micro-batch in every other stage, divided by the
v parts of an interleaved pipeline (Narayanan et al. 2021, section 2.2):

    step = m x slowest stage + (all stages - slowest stage) / v + sends + exposed gradients + optimizer

A stage's time is computing (`plesio_planning.estimate.kernels`) and those exchanges that nothing hides
(`estimate.communication`). Dependencies decide what is hidden: a tensor-parallel gradient is
reduced beside the product for the weights' gradient. A layer's data-parallel gradient is ready when its backward pass
ends; the link takes one after the other, and what is left when the last layer has ended is exposed. ZeRO 3 gathers a
layer's weights while the one before computes. Communication beside computing slows it down, as both use the device's
multiprocessors and its memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from plesio_planning.activations import boundary_bytes
from plesio_planning.estimate.communication import DeviceGroup, exposed_in_parts_s, exposed_in_turn_s
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.experts import exchange_s, permutation_s
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.kernels import Kernels, LayerTimes, head_times, launched_s, layer_times
from plesio_planning.estimate.layout import Layout, check_layout
from plesio_planning.estimate.memory import fullest_stage, layers_of_stage, stage_parameters
from plesio_planning.estimate.model import Convolutional, Model, Transformer

__all__ = ["Step", "estimate_step"]

_OPTIMIZER_BYTES = 46.0
"""Read and written a parameter: Adam's states and master weight (24), gradient and weight (6), and the gradient once
more for its norm (4), its scale (8) and its removal (4)."""


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
    if isinstance(model, Convolutional):
        seconds = _convolutional_s(model, layout, machine, num_micro_batches=num_micro_batches, constants=constants)
    else:
        seconds = _TransformerStep(model, layout, machine, constants).step_s(num_micro_batches)
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


class _TransformerStep:
    """The times of a model's parts under a layout, so that they are computed once."""

    def __init__(self, model: Transformer, layout: Layout, machine: Machine, constants: Constants) -> None:
        self.model, self.layout, self.machine, self.constants = model, layout, machine, constants
        self.kernels = Kernels.of(machine, layout, constants)
        self.tokens = layout.micro_batch * model.sequence_length / layout.cp
        layer, permuted_s = layer_times(model, layout, self.kernels), permutation_s(model, layout, self.kernels)
        forward_s, backward_s = layer.elements_s
        self.layer = replace(layer, elements_s=(forward_s + permuted_s, backward_s + permuted_s))
        self.head = head_times(model, layout, self.kernels)

    def group(self, size: int, stride: int) -> DeviceGroup:
        return DeviceGroup.of(self.machine, size=size, stride=stride, constants=self.constants)

    def step_s(self, num_micro_batches: int) -> dict[str, float]:
        layout, model = self.layout, self.model
        layer = self._layer_s()
        layer_s = sum(layer.values())
        head = _both_ways(self.head)
        head_s = sum(head.values())
        first, last = layers_of_stage(model, layout, 0), layers_of_stage(model, layout, layout.pp - 1)
        most = -(-model.num_layers // layout.pp)
        last_decides = layout.pp == 1 or last * layer_s + head_s >= most * layer_s
        layers = last if last_decides else most
        slowest_s = layers * layer_s + (head_s if last_decides else 0.0)
        seconds = {name: num_micro_batches * layers * value for name, value in layer.items()}
        if last_decides:
            for name, value in head.items():
                seconds[name] += num_micro_batches * value
        all_s = model.num_layers * layer_s + head_s
        seconds["bubble_s"] = self._waiting_share(layer_s) * max(all_s - slowest_s, 0.0) / layout.vpp
        seconds["send_s"] = self._sends_s(num_micro_batches)
        backward_s = layer_s - self.layer.forward_s
        seconds["gradient_s"] = self._gradients_s(backward_s, layers=first, num_micro_batches=num_micro_batches)
        seconds["optimizer_s"] = self._optimizer_s()
        return seconds

    def _waiting_share(self, layer_s: float) -> float:
        """Return the share of the waiting in 1F1B that a schedule leaves.

        Its ``(p-1) (F+B)`` become ``(p-1) (F+B-2W)`` where weights' gradients fill what they can (Qi et al. 2024), and
        ``(p/2-1) (F+2B-3W)`` where micro-batches come from both ends, too (DeepSeek-AI 2024, table 2).
        """
        stages, weights_s = self.layout.pp, self.layer.weight_gradient_s
        if self.layout.schedule == "zero-bubble":
            return max(1 - 2 * weights_s / layer_s, 0.0)
        if self.layout.schedule == "dualpipe":
            left_s = 2 * layer_s - self.layer.forward_s - 3 * weights_s
            return (stages / 2 - 1) / (stages - 1) * max(left_s / layer_s, 0.0)
        return 1.0

    def _layer_s(self) -> dict[str, float]:
        """Return the seconds of a layer and micro-batch, forward and backward, by part."""
        layout = self.layout
        seconds = _both_ways(self.layer)
        tensor_forward_s, tensor_backward_s = self._tensor_s()
        seconds["tensor_s"] = tensor_forward_s + tensor_backward_s
        seconds["context_s"] = self._context_s()
        expert_s = self._expert_s()
        seconds["expert_s"] = expert_s
        anew = {
            "none": 0.0,
            "partial": self.layer.partial_s,
            # fused attention computes anew in any case
            "selective": 0.0 if layout.software.fused_attention else self.layer.attention_s[0],
            "full": self.layer.forward_s + tensor_forward_s + expert_s / 2,
        }
        layers = -(-self.model.num_layers // layout.pp)
        seconds["recompute_s"] = anew[layout.recomputation] * (layout.recomputed_layers or layers) / layers
        seconds["launch_s"] = max(launched_s(layout, self.constants) - sum(seconds.values()), 0.0)
        if layout.software.synchronizes:
            seconds["launch_s"] += self.constants.synchronize_s
        return seconds

    def _tensor_s(self) -> tuple[float, float]:
        """Time the exchanges of a layer's blocks, forward and backward: two, or one if they are parallel."""
        layout, software = self.layout, self.layout.software
        if layout.tp == 1:
            return 0.0, 0.0
        group = self.group(layout.tp, 1)
        num_bytes = self.tokens * self.model.hidden_size * self.kernels.element_bytes
        blocks = 1 if self.model.parallel_blocks else 2
        if not layout.sequence_parallel:
            forward_s = backward_s = blocks * group.all_reduce_s(num_bytes)
            hidden_s = self.layer.weight_gradient_s if software.overlaps_tensor else 0.0
            return forward_s, max(backward_s - hidden_s, 0.0)
        once_s = group.all_gather_s(num_bytes)
        # forward: a block gathers and scatters; backward: as often, and it gathers once more for the weights' gradients
        forward_s, plain_s, beside_s = 2 * blocks * once_s, blocks * once_s, 2 * blocks * once_s
        if software.splits_tensor:
            forward_s = exposed_in_parts_s(forward_s, beside_s=self.layer.matrix_s[0], parts=layout.tp)
            plain_s = exposed_in_parts_s(
                plain_s, beside_s=self.layer.matrix_s[1] - self.layer.weight_gradient_s, parts=layout.tp
            )
        hidden_s = self.layer.matrix_s[1] if software.overlaps_tensor else 0.0
        return forward_s, plain_s + max(beside_s - hidden_s, 0.0)

    def _context_s(self) -> float:
        """Time keys and values that go round a ring beside attention, forward; backward their gradients, too."""
        layout = self.layout
        if layout.cp == 1:
            return 0.0
        num_bytes = 2 * self.tokens * self.model.kv_size / layout.tp * self.kernels.element_bytes
        exchange_s = (layout.cp - 1) * self.group(layout.cp, layout.tp).send_s(num_bytes)
        forward_s = max(exchange_s - self.layer.attention_s[0] * (layout.cp - 1) / layout.cp, 0.0)
        return forward_s + max(2 * exchange_s - self.layer.attention_s[1] * (layout.cp - 1) / layout.cp, 0.0)

    def _expert_s(self) -> float:
        """Time exchanges of tokens with their experts, both ways, less what computing hides of them."""
        exchanged_s = exchange_s(
            self.model, self.layout, self.kernels, self.group(self.layout.ep, self.layout.expert_tp)
        )
        if not self.layout.software.overlaps_experts:
            return exchanged_s
        computing_s = sum(_both_ways(self.layer).values())
        hidden_s = min(exchanged_s, computing_s)
        return exchanged_s - hidden_s + self._slowdown * hidden_s

    def _sends_s(self, num_micro_batches: int) -> float:
        """Return the seconds of sends that keep a stage waiting: each micro-batch's, or those to fill the pipeline."""
        layout, model = self.layout, self.model
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
        num_bytes *= self.kernels.element_bytes / 2
        once_s = self.group(layout.pp, stride).send_s(num_bytes)
        if not layout.sequence_parallel:
            once_s += self.group(layout.tp, 1).all_gather_s(num_bytes * layout.tp)
        filling = 2 * (layout.pp - 1)
        if layout.software.overlaps_pipeline and layout.vpp > 1:
            return filling * once_s
        return (filling + 2 * layout.vpp * num_micro_batches) * once_s

    def _gradients_s(self, backward_s: float, *, layers: int, num_micro_batches: int) -> float:
        """Time data-parallel exchanges that nothing hides, and the slowdown of computing by the others."""
        layout = self.layout
        dense, experts = stage_parameters(self.model, layout, fullest_stage(self.model, layout))
        gradient, weight = float(layout.gradient_bytes), self.kernels.element_bytes
        if layout.zero == 3 and layout.software.quantizes_exchanges:
            gradient, weight = 0.5, 1
        exchange_s = gather_s = backward_gather_s = between_s = 0.0
        for parameters, size, sharing, apart in (
            (dense, layout.dp * layout.cp, layout.sharing, layout.tp),
            (experts, layout.expert_replicas, layout.experts_sharing, layout.expert_tp * layout.ep),
        ):
            if size == 1 or not parameters:
                continue
            gradients = gradient * parameters / layers
            if sharing > 1:
                group = self.replicas(sharing, apart)
                reduce_s = group.all_reduce_s if layout.software.all_reduces_gradients else group.all_gather_s
                exchange_s += layers * reduce_s(gradients)
                once_s = layers * group.all_gather_s(weight * parameters / layers)
                gather_s += once_s
                if layout.software.gathers_in_host:
                    in_host = max(min(self.machine.devices_per_host // apart, sharing), 1)
                    once_s = layers * self.replicas(in_host, apart).all_gather_s(weight * parameters / layers)
                backward_gather_s += once_s
            if sharing < size:  # groups of those that share add up their parts
                between_s += layers * self.replicas(size // sharing, apart * sharing).all_reduce_s(gradients / sharing)
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
        forward_s, backward_s = turns * self.layer.forward_s, turns * backward_s
        gather_forward_s = self._beside_s(gather_s, forward_s, layers=layers)
        if layout.zero == 3:
            gather_forward_s, backward_gather_s = rounds * gather_forward_s, again * backward_gather_s
        else:
            backward_gather_s = 0.0
        last_s = self._beside_s(backward_gather_s + exchange_s + between_s, backward_s, layers=layers)
        others_s = self._beside_s(backward_gather_s + exchange_s, backward_s, layers=layers) if rounds > 1 else 0.0
        return gather_forward_s + last_s + (rounds - 1) * others_s

    def replicas(self, size: int, stride: int) -> DeviceGroup:
        """Return devices with the same part of a stage."""
        return DeviceGroup.of(
            self.machine,
            size=size,
            stride=stride,
            constants=self.constants,
            one_adapter=self.layout.software.one_adapter,
        )

    def _beside_s(self, exchange_s: float, layer_s: float, *, layers: int) -> float:
        """Seconds that exchanges beside all layers' computing add: what is left over, and what they slow down.

        NCCL takes multiprocessors for every adapter that it drives, so an exchange by one of them slows down less. TPUs
        have engines of their own for it.
        """
        exposed_s = exposed_in_turn_s(exchange_s, beside_s=layer_s, parts=layers)
        return exposed_s + self._slowdown * min(exchange_s, layers * layer_s)

    @property
    def _slowdown(self) -> float:
        """Seconds that computing takes longer for each second of an exchange beside it."""
        if self.machine.accelerator.exchanges_apart:
            return 0.0
        adapters = 1 / self.machine.devices_per_host if self.layout.software.one_adapter else 1.0
        return adapters * self.constants.contention

    def _optimizer_s(self) -> float:
        layout = self.layout
        dense, experts = stage_parameters(self.model, layout, fullest_stage(self.model, layout))
        dense, experts = dense / layout.sharing, experts / layout.experts_sharing
        if layout.offload:
            # gradients go to the host, new weights come back, and the host reads and writes all between
            moved = layout.gradient_bytes + self.kernels.element_bytes
            return (dense + experts) * (
                moved / self.constants.host_link_bytes_per_s + _OPTIMIZER_BYTES / self.constants.host_bytes_per_s
            )
        return (dense + experts) * _OPTIMIZER_BYTES / self.kernels.bytes_per_s


def _both_ways(times: LayerTimes) -> dict[str, float]:
    return {
        "matrix_s": sum(times.matrix_s),
        "attention_s": sum(times.attention_s),
        "elements_s": sum(times.elements_s),
    }


def _convolutional_s(
    model: Convolutional, layout: Layout, machine: Machine, *, num_micro_batches: int, constants: Constants
) -> dict[str, float]:
    kernels = Kernels.of(machine, layout, constants)
    rate = machine.accelerator.peak(layout.precision) * constants.convolution_efficiency
    matrix_s = num_micro_batches * layout.micro_batch * model.model_flops / rate
    group = DeviceGroup.of(machine, size=layout.dp, stride=1, constants=constants)
    exchange_s = group.all_reduce_s(layout.gradient_bytes * model.num_parameters)
    if layout.software.overlaps_gradients:
        backward_s = 2 / 3 * matrix_s / num_micro_batches / model.num_layers
        exchange_s = exposed_in_turn_s(exchange_s, beside_s=backward_s, parts=model.num_layers)
    optimizer_s = model.num_parameters * _OPTIMIZER_BYTES / kernels.bytes_per_s
    return {"matrix_s": matrix_s, "gradient_s": exchange_s, "optimizer_s": optimizer_s}
