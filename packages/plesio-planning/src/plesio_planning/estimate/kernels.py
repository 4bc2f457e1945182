"""Seconds that a device computes for a layer, from its operations' sizes.

A matrix product of M x K by K x N is ``2MNK`` FLOPs at the efficiency of large products, plus the share of its traffic
(``MK + KN + MN`` elements, each once) that arithmetic does not hide. It takes no less time than its traffic
alone, which is the roofline (Williams et al. 2009). So efficiency falls as a device's part of a matrix gets thin:
``1 / (1 + c (1/M + 1/N + 1/K))``. Operations on single elements (norms, GeLU, dropout, residuals, softmax) are their
traffic over the memory's bandwidth.

In FP8 a layer's products run at FP8's own efficiency, and their inputs are cast before; attention and the output matrix
stay in 16 bits.
"""

from dataclasses import dataclass

from plesio_planning.estimate.constants import Constants
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Transformer

# Elements read and written by operations of a layer, in multiples of one tensor. A dropout's mask is half an element.
_NORM = (2.0, 3.0)  # x -> y; dy, x -> dx
_DROPOUT_ADD = (3.5, 5.5)  # x, residual -> y, mask; dy, mask -> dx, and the residual's two gradients added up
_ACTIVATION = (2.0, 3.0)  # x -> y; dy, x -> dx
_GATED = (3.0, 5.0)  # gate, up -> y; dy, gate, up -> two gradients
_ROTATE = (2.0, 2.0)
_SOFTMAX_DROPOUT = (4.5, 5.5)  # x -> y; y -> z, mask; dz, mask -> dy; dy, y -> dx
_LOSS_BYTES = (14.0, 6.0)  # of a logit, in FP32: converted, exponentiated, normed; gradient
_CAST_BYTES = 4.0  # of an element in FP8: 2 read, 1 written, and 1 in the transposed copy
_ATTENTION_BLOCK = 128  # rows that fused attention computes at a time; those on the mask's edge whole
_OLD_INSTRUCTIONS = 0.62  # of Hopper's peak, without its asynchronous matrix instructions (Luo et al. 2024: 62.9 %)
_OPERATIONS = (15, 30)  # that a host starts for a layer, forward and backward: an assumption


@dataclass(frozen=True, slots=True)
class Kernels:
    """The speeds of one device.

    Attributes:
        flops_per_s: Speed of a layer's matrix products.
        half_flops_per_s: Speed of the products that are not in FP8 where the layers' are.
        bytes_per_s: Bandwidth of its memory.
        elements_bytes_per_s: The same, of operations on elements, whose traffic is counted as if they were fused.
        exposed_traffic: Share of a product's traffic that its arithmetic does not hide.
        kernel_s: Seconds that an operation takes before it does anything.
        expert_kernel_s: The same of a product for one expert of several, where each is an operation of its own.
        cast_bytes: Bytes read and written to cast an element of a product's input.
    """

    flops_per_s: float
    half_flops_per_s: float
    attention_flops_per_s: float
    bytes_per_s: float
    elements_bytes_per_s: float
    exposed_traffic: float
    kernel_s: float
    expert_kernel_s: float
    element_bytes: int
    cast_bytes: float

    @classmethod
    def of(cls, machine: Machine, layout: Layout, constants: Constants) -> "Kernels":
        """Return the speeds of a machine's accelerators."""
        accelerator, architecture = machine.accelerator, machine.accelerator.architecture
        peak, fp8 = accelerator.peak(layout.precision), layout.precision == "fp8"
        half_peak = accelerator.peak("bf16") if fp8 else peak
        half_flops_per_s = half_peak * constants.matrix_efficiency[architecture]
        bytes_per_s = accelerator.memory_bytes_per_s * constants.memory_efficiency
        return cls(
            flops_per_s=peak * constants.fp8_efficiency[architecture] if fp8 else half_flops_per_s,
            half_flops_per_s=half_flops_per_s,
            attention_flops_per_s=half_peak * _attention_efficiency(architecture, layout, constants),
            bytes_per_s=bytes_per_s,
            elements_bytes_per_s=bytes_per_s / (constants.eager_traffic if layout.software.eager else 1.0),
            exposed_traffic=constants.exposed_traffic,
            kernel_s=constants.kernel_s,
            expert_kernel_s=_expert_kernel_s(architecture, layout, constants),
            element_bytes=layout.element_bytes,
            cast_bytes=_CAST_BYTES if fp8 else 0.0,
        )

    def product_s(
        self, m: float, n: float, k: float, *, times: float = 1.0, added: bool = False, half: bool = False
    ) -> float:
        """Return seconds of ``times`` matrix products; ``added`` to what is there, in FP32; ``half``: not in FP8."""
        num_bytes = self.element_bytes * (m * k + k * n + m * n)
        if added:
            num_bytes += (8 - self.element_bytes) * m * n
        traffic_s = times * num_bytes / self.bytes_per_s
        flops_per_s = self.half_flops_per_s if half else self.flops_per_s
        seconds = max(2.0 * times * m * n * k / flops_per_s + self.exposed_traffic * traffic_s, traffic_s)
        return seconds + self.kernel_s

    def elements_s(self, num_elements: float) -> float:
        """Return the seconds to read and write so many elements."""
        return num_elements * self.element_bytes / self.elements_bytes_per_s + self.kernel_s

    def cast_s(self, num_elements: float) -> float:
        """Return the seconds to cast so many elements of a product's input to its precision."""
        return num_elements * self.cast_bytes / self.bytes_per_s


def _expert_kernel_s(architecture: str, layout: Layout, constants: Constants) -> float:
    if layout.software.groups_experts:
        return 0.0
    return constants.fp8_expert_kernel_s[architecture] if layout.precision == "fp8" else constants.expert_kernel_s


def _attention_efficiency(architecture: str, layout: Layout, constants: Constants) -> float:
    """Share of the peak that fused attention reaches."""
    software, hopper = layout.software, architecture == "hopper"
    if not software.flash_attention_1 and (software.hopper_attention or not hopper):
        return constants.attention_efficiency[architecture]
    on_ampere = constants.flash_1_efficiency if software.flash_attention_1 else constants.attention_efficiency["ampere"]
    return on_ampere * (_OLD_INSTRUCTIONS if hopper else 1.0)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of a layer (or of what is after the last one) and a micro-batch on a device, forward and backward.

    Attributes:
        partial_s: Those of the forward pass that partial recomputation repeats.
    """

    matrix_s: tuple[float, float]
    attention_s: tuple[float, float]
    elements_s: tuple[float, float]
    weight_gradient_s: float
    partial_s: float = 0.0

    @property
    def forward_s(self) -> float:
        """All of the forward pass."""
        return self.matrix_s[0] + self.attention_s[0] + self.elements_s[0]


def launched_s(layout: Layout, constants: Constants) -> float:
    """Seconds that a host takes to start a layer's operations, forward, backward and anew: the device may wait."""
    forward, backward = _OPERATIONS
    again = forward if layout.recomputation == "full" else 0
    return (forward + backward + again) * constants.launch_s


def layer_times(model: Transformer, layout: Layout, kernels: Kernels) -> LayerTimes:
    """Return the seconds of a layer."""
    tokens = layout.micro_batch * model.sequence_length / layout.cp
    tp, hidden = layout.tp, model.hidden_size
    inner = model.ffn_size / layout.expert_tp
    columns = (2 if model.gated else 1) * inner
    # tokens of one expert: all experts of a device compute one after the other, or as a grouped product
    experts = model.num_experts / layout.ep
    expert_tokens = tokens * model.experts_per_token * model.capacity_factor / experts * layout.expert_tp / tp
    forward_s = backward_s = weight_s = 0.0
    products: list[tuple[float, float, float, float]] = [
        *((tokens, n, k, 1) for n, k in _attention_products(model, tp)),
        (expert_tokens, columns, hidden, experts),
        (expert_tokens, hidden, inner, experts),
    ]
    if model.shared_ffn_size:
        shared = model.shared_ffn_size / tp
        products += [(tokens, (2 if model.gated else 1) * shared, hidden, 1), (tokens, hidden, shared, 1)]
    for rows, n, k, times in products:
        forward_s += kernels.product_s(rows, n, k, times=times) + kernels.cast_s(rows * k * times)
        input_s = kernels.product_s(rows, k, n, times=times) + kernels.cast_s(rows * n * times)
        gradient_s = kernels.product_s(k, n, rows, times=times, added=layout.software.fused_gradient_addition)
        backward_s += input_s + gradient_s
        weight_s += gradient_s
    if model.num_experts > 1:  # two products forward, four backward, of which two are for the weights
        each_s = 2 * experts * kernels.expert_kernel_s
        forward_s, backward_s, weight_s = forward_s + each_s, backward_s + 2 * each_s, weight_s + each_s
    attention = _attention_s(model, layout, kernels)
    elements = _elements_s(model, layout, kernels)
    return LayerTimes((forward_s, backward_s), attention, elements, weight_s, _partial_s(model, layout, kernels))


def _attention_products(model: Transformer, tp: int) -> list[tuple[float, float]]:
    """Return columns and inner size of the products for queries, keys, values and output: a device's part of them."""
    hidden, output = model.hidden_size, model.attention_size / tp
    if model.kv_rank is None:
        keys = max(model.kv_size / tp, model.attention_size / model.num_heads)
        return [(output + 2 * keys, hidden), (hidden, output)]
    # every device compresses for itself, and expands for its own heads
    queries = model.query_size / tp
    by_rank = [(queries, hidden)]
    if model.query_rank is not None:
        by_rank = [(model.query_rank, hidden), (queries, model.query_rank)]
    return [*by_rank, (model.kv_rank + model.rope_size, hidden), (2 * output, model.kv_rank), (hidden, output)]


def _attention_s(model: Transformer, layout: Layout, kernels: Kernels) -> tuple[float, float]:
    """Time attention forward and backward: scores, softmax, dropout and the sum over values."""
    sequence = model.sequence_length
    heads = layout.micro_batch * model.num_heads / layout.tp
    if (
        layout.software.fused_attention
    ):  # half of the scores are masked, and skipped; backward there are 5 products for 2
        flops = layout.micro_batch * model.core_attention_flops / layout.tp / layout.cp / 2
        forward_s = flops * (1 + _ATTENTION_BLOCK / sequence) / kernels.attention_flops_per_s
        return forward_s + kernels.kernel_s, 2.5 * forward_s + kernels.kernel_s
    rows = sequence / layout.cp
    pairs = heads * rows * sequence
    products_s = kernels.product_s(rows, sequence, model.query_size / model.num_heads, times=heads, half=True)
    products_s += kernels.product_s(rows, model.attention_size / model.num_heads, sequence, times=heads, half=True)
    forward_s = products_s + kernels.elements_s(_SOFTMAX_DROPOUT[0] * pairs)
    return forward_s, 2 * products_s + kernels.elements_s(_SOFTMAX_DROPOUT[1] * pairs)


def _partial_s(model: Transformer, layout: Layout, kernels: Kernels) -> float:
    """Time norms and the activation, forward, and what expands compressed queries, keys and values."""
    tokens = layout.micro_batch * model.sequence_length / layout.cp
    whole = tokens * model.hidden_size / (layout.tp if layout.sequence_parallel else 1)
    inside = tokens * (model.experts_per_token * model.ffn_size + model.shared_ffn_size) / layout.tp
    activation = _GATED if model.gated else _ACTIVATION
    seconds = 2 * kernels.elements_s(_NORM[0] * whole) + kernels.elements_s(activation[0] * inside)
    if model.kv_rank is not None:
        queries = model.query_size / layout.tp
        seconds += kernels.product_s(tokens, 2 * model.attention_size / layout.tp, model.kv_rank)
        seconds += kernels.product_s(tokens, queries, model.query_rank or model.hidden_size)
    return seconds


def _elements_s(model: Transformer, layout: Layout, kernels: Kernels) -> tuple[float, float]:
    """Time two norms, two residuals with dropout, the activation, and rotated queries and keys, both ways."""
    tokens = layout.micro_batch * model.sequence_length / layout.cp
    whole = tokens * model.hidden_size / (layout.tp if layout.sequence_parallel else 1)
    inside = tokens * (model.experts_per_token * model.ffn_size + model.shared_ffn_size) / layout.tp
    queries_and_keys = tokens * (model.attention_size + model.kv_size) / layout.tp
    rotated = 0.0 if model.biases else queries_and_keys
    activation = _GATED if model.gated else _ACTIVATION
    blocks = 1 if model.parallel_blocks else 2
    forward_s, backward_s = (
        blocks * kernels.elements_s(_NORM[way] * whole)
        + (2 * kernels.elements_s(_NORM[way] * queries_and_keys / 2) if model.query_key_norms else 0.0)
        + 2 * kernels.elements_s(_DROPOUT_ADD[way] * whole)
        + kernels.elements_s(activation[way] * inside)
        + kernels.elements_s(_ROTATE[way] * rotated)
        for way in (0, 1)
    )
    if not layout.software.fused_gradient_addition:  # the gradient, what was there, and their sum
        experts = model.expert_parameters * model.num_experts / layout.ep / layout.expert_tp
        backward_s += kernels.elements_s(3.0 * (model.common_parameters / layout.tp + experts))
    return forward_s, backward_s


def head_times(model: Transformer, layout: Layout, kernels: Kernels) -> LayerTimes:
    """Return the seconds of the output matrix and the loss."""
    tokens = layout.micro_batch * model.sequence_length / layout.cp
    columns = model.vocabulary_size / layout.tp
    gradient_s = kernels.product_s(
        model.hidden_size, columns, tokens, added=layout.software.fused_gradient_addition, half=True
    )
    matrix_s = (
        kernels.product_s(tokens, columns, model.hidden_size, half=True),
        kernels.product_s(tokens, model.hidden_size, columns, half=True) + gradient_s,
    )
    forward_s, backward_s = (
        kernels.elements_s(num_bytes * tokens * columns / kernels.element_bytes) for num_bytes in _LOSS_BYTES
    )
    return LayerTimes(matrix_s, (0.0, 0.0), (forward_s, backward_s), gradient_s)
