"""Seconds of one layer and micro-batch on a device: computing, and those exchanges that nothing hides.

They depend neither on the stages nor on the replicas, so that layouts which differ only in these share them.
Dependencies decide what is hidden: a tensor-parallel gradient is reduced beside the product for the weights' gradient,
keys and values of a context go round beside attention, and activations go to the host's memory and back beside all of
a layer's computing, there beside its forward pass and back beside its backward pass.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from plesio_planning.estimate.communication import DeviceGroup, exposed_in_parts_s
from plesio_planning.estimate.constants import Constants
from plesio_planning.estimate.experts import exchange_s, permutation_s
from plesio_planning.estimate.kernels import Kernels, LayerTimes, launched_s, layer_times
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.memory import layer_bytes
from plesio_planning.estimate.model import Transformer


@dataclass(frozen=True, slots=True)
class Layer:
    """The seconds of a layer and micro-batch.

    Attributes:
        parts: Seconds forward and backward, by part of a step; they add up to ``total_s``.
        forward_s: Computing of the forward pass.
        weight_gradient_s: Products for the weights' gradients.
    """

    parts: Mapping[str, float]
    total_s: float
    forward_s: float
    weight_gradient_s: float

    @property
    def backward_s(self) -> float:
        """All but the computing of the forward pass."""
        return self.total_s - self.forward_s


def both_ways(times: LayerTimes) -> dict[str, float]:
    """Return the seconds of computing forward and backward, by part of a step."""
    return {"matrix_s": sum(times.matrix_s), "attention_s": sum(times.attention_s), "elements_s": sum(times.elements_s)}


def mean_layer(kept: Layer, again: Layer, *, share: float) -> Layer:
    """Return the mean of layers of which a share is computed again."""
    return Layer(
        {name: (1 - share) * value + share * again.parts[name] for name, value in kept.parts.items()},
        (1 - share) * kept.total_s + share * again.total_s,
        kept.forward_s,
        kept.weight_gradient_s,
    )


def time_layer(
    model: Transformer,
    layout: Layout,
    kernels: Kernels,
    constants: Constants,
    *,
    group: Callable[[int, int], DeviceGroup],
    contention: float,
) -> Layer:
    """Time a layer that is computed again as the layout says.

    Args:
        model: Model to train.
        layout: How.
        kernels: Speeds of a device.
        constants: How close devices come to their data sheets.
        group: Returns the devices that exchange, by their number and how many ranks they are apart.
        contention: Seconds that computing takes longer for each second of an exchange by all adapters beside it.
    """
    times, permuted_s = layer_times(model, layout, kernels), permutation_s(model, layout, kernels)
    elements_s = (times.elements_s[0] + permuted_s, times.elements_s[1] + permuted_s)
    times = replace(times, elements_s=elements_s)
    seconds = both_ways(times)
    computing_s = sum(seconds.values())
    tensor_s = _tensor_s(model, layout, kernels, times, group)
    sharing = group(layout.ep, layout.expert_tp)
    expert_s = exchange_s(model, layout, kernels, sharing)
    if layout.software.overlaps_experts:
        hidden_s = min(expert_s, computing_s)
        expert_s += (contention * sharing.driven - 1) * hidden_s
    seconds["tensor_s"] = sum(tensor_s)
    seconds["context_s"] = _context_s(model, layout, kernels, times, group)
    seconds["expert_s"] = expert_s
    seconds["recompute_s"] = {
        "none": 0.0,
        "partial": times.partial_s,
        # fused attention computes anew in any case
        "selective": 0.0 if layout.software.fused_attention else times.attention_s[0],
        "full": times.forward_s + tensor_s[0] + expert_s / 2,
    }[layout.recomputation]
    seconds["launch_s"] = max(launched_s(layout, constants) - sum(seconds.values()), 0.0)
    if layout.software.synchronizes:
        seconds["launch_s"] += constants.synchronize_s
    seconds["offload_s"] = 0.0
    if layout.offload_activations:
        moved_s = layer_bytes(model, layout, layout.recomputation) / constants.host_link_bytes_per_s
        backward_s = sum(seconds.values()) - times.forward_s
        seconds["offload_s"] = max(moved_s - times.forward_s, 0.0) + max(moved_s - backward_s, 0.0)
    return Layer(seconds, sum(seconds.values()), times.forward_s, times.weight_gradient_s)


def _tensor_s(
    model: Transformer, layout: Layout, kernels: Kernels, times: LayerTimes, group: Callable[[int, int], DeviceGroup]
) -> tuple[float, float]:
    """Time the exchanges of a layer's blocks, forward and backward: two, or one if they are parallel."""
    software = layout.software
    if layout.tp == 1:
        return 0.0, 0.0
    sharing = group(layout.tp, 1)
    tokens = layout.micro_batch * model.sequence_length / layout.cp
    num_bytes = tokens * model.hidden_size * kernels.element_bytes
    blocks = 1 if model.parallel_blocks else 2
    if not layout.sequence_parallel:
        forward_s = backward_s = blocks * sharing.all_reduce_s(num_bytes)
        hidden_s = times.weight_gradient_s if software.overlaps_tensor else 0.0
        return forward_s, max(backward_s - hidden_s, 0.0)
    once_s = sharing.all_gather_s(num_bytes)
    # forward: a block gathers and scatters; backward: as often, and it gathers once more for the weights' gradients
    forward_s, plain_s, beside_s = 2 * blocks * once_s, blocks * once_s, 2 * blocks * once_s
    if software.splits_tensor:
        forward_s = exposed_in_parts_s(forward_s, beside_s=times.matrix_s[0], parts=layout.tp)
        plain_s = exposed_in_parts_s(plain_s, beside_s=times.matrix_s[1] - times.weight_gradient_s, parts=layout.tp)
    hidden_s = times.matrix_s[1] if software.overlaps_tensor else 0.0
    return forward_s, plain_s + max(beside_s - hidden_s, 0.0)


def _context_s(
    model: Transformer, layout: Layout, kernels: Kernels, times: LayerTimes, group: Callable[[int, int], DeviceGroup]
) -> float:
    """Time keys and values that go round a ring beside attention, forward; backward their gradients, too."""
    if layout.cp == 1:
        return 0.0
    tokens = layout.micro_batch * model.sequence_length / layout.cp
    num_bytes = 2 * tokens * model.kv_size / layout.tp * kernels.element_bytes
    ring_s = (layout.cp - 1) * group(layout.cp, layout.tp).send_s(num_bytes)
    others = (layout.cp - 1) / layout.cp
    forward_s = max(ring_s - times.attention_s[0] * others, 0.0)
    return forward_s + max(2 * ring_s - times.attention_s[1] * others, 0.0)
