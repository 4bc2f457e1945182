"""Bytes that a training run needs on the device that needs the most.

Adam in mixed precision keeps for every parameter 2 bytes of weight, 12 of optimizer state (master weight and two
moments in FP32), and a gradient of 2 or 4 (Rajbhandari et al. 2020, section 3.1); in FP32, 4 and 8 and 4. ZeRO divides
the optimizer's state (stage 1), gradients (2) and weights (3) by the replicas; the gradients of the part of an
interleaved stage that is at work are whole, as they collect what p micro-batches add. Activations are those of
`plesio_planning.activations` (Korthikanti et al. 2022), corrected for gated networks and shared keys and values, times
the micro-batches that a stage holds: in 1F1B stage i of p holds ``min(p-i, m)``, and interleaved
``(2(p-i-1) + (v-1)p + 1) / v``, which for the first is ``p (1 + (p-1)/pv)``; DualPipe holds p + 1 in every stage, and
the weights and gradients of two stages (DeepSeek-AI 2024, table 2). Products in FP8 keep their inputs in a byte an
element. Stages differ, so both ends of the
pipeline are looked at, the first stage that has the most layers, and the first one full of experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plesio_planning.activations import Recomputation, layer_activation_bytes
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout, LayoutRecomputation, check_layout
from plesio_planning.estimate.model import Convolutional, Model, Transformer

CONTEXT_BYTES = 2**30
"""Bytes of a device for the CUDA context and the libraries' buffers: an assumption."""
HOST_BYTES = 2**41 / 8
"""A device's share of its host's memory: an assumption, after the 2 TB of a DGX A100 or H100 with eight devices."""
_OFFLOADED_LAYERS = 2
"""Layers whose activations are on the device where the others are in the host: one computes, one is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes a device.

    Attributes:
        parameters_bytes: Weights that matrices are multiplied with.
        optimizer_bytes: Adam's moments and master weights.
        activations_bytes: Bytes that the backward pass needs.
        buffers_bytes: Logits, parameters gathered for a while, and the CUDA context.
        host_bytes: What the device keeps in its host's memory; no part of the total.
        stage: The pipeline stage that needs the most.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    buffers_bytes: float
    capacity_bytes: float
    host_bytes: float = 0.0
    stage: int = 0

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, float]:
        """The parts that add up to the total."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer": self.optimizer_bytes,
            "activations": self.activations_bytes,
            "buffers": self.buffers_bytes,
        }

    @property
    def fits(self) -> bool:
        """The device has as much, and so has its host."""
        return self.total_bytes <= self.capacity_bytes and self.host_bytes <= HOST_BYTES


def estimate_memory(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> Memory:
    """Return the memory of the device that needs the most.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> from plesio_planning.estimate.named_models import find_model
    >>> layout = Layout(tp=8, pp=8, vpp=3, recomputation="selective", sequence_parallel=True)
    >>> memory = estimate_memory(find_model("gpt3-175b"), layout, parse_machine("64xa100"), global_batch=64)
    >>> memory.fits, round(memory.activations_bytes / 2**30, 1)
    (True, 12.4)

    Args:
        model: Model to train.
        layout: How.
        machine: Machine to run on.
        global_batch: Sequences (or images) of a step.

    Raises:
        ConfigError: The model cannot be laid out so.
    """
    num_micro_batches = check_layout(model, layout, machine, global_batch=global_batch)
    return fullest_memory(model, layout, machine, num_micro_batches=num_micro_batches)


def fullest_memory(model: Model, layout: Layout, machine: Machine, *, num_micro_batches: int) -> Memory:
    """Return the memory of the device that needs the most, and of the host that does, of a layout that can be."""
    stages = {0, layout.pp - 1}
    if isinstance(model, Transformer):
        stages |= {_first_with_most_layers(model, layout), fullest_stage(model, layout)}
    memories = [
        memory_of_stage(model, layout, machine, stage=stage, num_micro_batches=num_micro_batches)
        for stage in sorted(stages)
    ]
    fullest = max(memories, key=lambda memory: memory.total_bytes)
    in_host = max(memory.host_bytes for memory in memories)
    return fullest if fullest.host_bytes == in_host else replace(fullest, host_bytes=in_host)


def memory_of_stage(model: Model, layout: Layout, machine: Machine, *, stage: int, num_micro_batches: int) -> Memory:
    """Return the memory of a device of one stage, from a layout that has been checked."""
    if isinstance(model, Convolutional):
        dense, experts = float(model.num_parameters), 0.0
        activations = float(layout.element_bytes * model.activation_values * layout.micro_batch)
        buffers = in_host = 0.0
    else:
        dense, experts = stage_parameters(model, layout, stage)
        activations, in_host = _activations(model, layout, stage=stage, num_micro_batches=num_micro_batches)
        buffers = _buffers(model, layout, stage)
    gradient_bytes = layout.gradient_bytes
    # from both ends a device has two stages, of whose state it keeps a half, as twice as many devices share it
    copies = 2 if layout.schedule == "dualpipe" else 1
    weight_bytes, state_bytes = (4, 8) if layout.full_precision else (2, 12)
    # the master weight's upper half is the BF16 weight itself
    if layout.keeps_remainders:
        state_bytes -= 2
    # with ZeRO 2 one chunk's gradients are whole until they are scattered
    collecting = (dense + experts) / layout.vpp if layout.zero == 2 and layout.vpp > 1 else 0.0

    def share(num_bytes: float, *, from_stage: int) -> float:
        if layout.zero < from_stage:
            return num_bytes * (dense + experts)
        return num_bytes * (dense / layout.sharing + experts / layout.experts_sharing)

    parameters, optimizer = copies * share(weight_bytes, from_stage=3), share(state_bytes, from_stage=1)
    if layout.zero == 3 and layout.software.gathers_in_host:
        parameters += weight_bytes * dense / max(min(machine.devices_per_host // layout.tp, layout.sharing), 1)
        apart = layout.expert_tp * layout.ep
        parameters += weight_bytes * experts / max(min(machine.devices_per_host // apart, layout.experts_sharing), 1)
    return Memory(
        parameters_bytes=parameters,
        gradients_bytes=(copies if layout.zero < 2 else 1) * share(gradient_bytes, from_stage=2)
        + gradient_bytes * collecting,
        optimizer_bytes=0.0 if layout.offload else optimizer,
        activations_bytes=activations,
        buffers_bytes=buffers + CONTEXT_BYTES,
        capacity_bytes=machine.accelerator.memory_bytes,
        host_bytes=in_host + (optimizer if layout.offload else 0.0),
        stage=stage,
    )


def layers_of_stage(model: Transformer, layout: Layout, stage: int) -> int:
    """Return the layers of a stage; where they are not even, the last ones have fewer, and as many of the first.

    The first and the last have the embedding and the output as well (Llama 3's stages; Grattafiori et al. 2024, section
    3.3.2).
    """
    layers, rest = divmod(model.num_layers, layout.pp)
    if rest == 0:
        return layers
    with_fewer = layout.pp - rest
    has_fewer = stage < with_fewer // 2 or stage >= layout.pp - (with_fewer - with_fewer // 2)
    return layers if has_fewer else layers + 1


def _first_with_most_layers(model: Transformer, layout: Layout) -> int:
    return -model.num_layers % layout.pp // 2


def fullest_stage(model: Transformer, layout: Layout) -> int:
    """Return the first stage, with its embedding; where layers without experts begin, the first without any of them."""
    if not model.num_dense_layers:
        return 0
    stages = range(layout.pp)
    return next((stage for stage in stages if not _dense_layers_of_stage(model, layout, stage)), layout.pp - 1)


def _dense_layers_of_stage(model: Transformer, layout: Layout, stage: int) -> int:
    if not model.num_dense_layers:
        return 0
    before = sum(layers_of_stage(model, layout, earlier) for earlier in range(stage))
    return min(max(model.num_dense_layers - before, 0), layers_of_stage(model, layout, stage))


def stage_parameters(model: Transformer, layout: Layout, stage: int) -> tuple[float, float]:
    """Return the parameters of a device of the stage: those that all replicas have, and those of its experts."""
    without_experts = _dense_layers_of_stage(model, layout, stage)
    layers = layers_of_stage(model, layout, stage) - without_experts
    is_last = stage == layout.pp - 1
    dense, experts = layers * model.common_parameters, 0
    if without_experts:
        dense += without_experts * model.dense_layer_parameters
    if model.num_experts == 1:
        dense += layers * model.expert_parameters
    else:
        experts = layers * model.num_experts * model.expert_parameters
    if stage == 0:
        dense += model.embedding_parameters
    if is_last:
        dense += model.head_parameters
        if model.tied_embeddings and layout.pp > 1:  # the last stage has a copy
            dense += model.vocabulary_size * model.hidden_size
    return dense / layout.tp, experts / layout.expert_tp / layout.ep


def layer_bytes(model: Transformer, layout: Layout, recomputation: LayoutRecomputation) -> float:
    """Return the activations that a layer keeps of a micro-batch on a device."""
    return layout.element_bytes / 2 * _half_layer_bytes(model, layout, recomputation)


def _half_layer_bytes(model: Transformer, layout: Layout, recomputation: LayoutRecomputation) -> float:
    """Return the same in 16 bits."""
    sequence = model.sequence_length // layout.cp
    fused = recomputation in ("none", "partial") and layout.software.fused_attention
    counted: Recomputation = "none" if recomputation == "partial" else recomputation
    kept = layer_activation_bytes(
        hidden=model.hidden_size,
        num_heads=model.num_heads,
        sequence=sequence,
        batch=layout.micro_batch,
        recomputation="selective" if fused else counted,
        tensor_parallel=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        dropout=model.dropout,
    )
    if recomputation == "full":
        return kept
    # Of the formula's 34 s b h, 16 are two tensors of width 4h in the network, and 8 are queries, keys, values and the
    # output projection's input, 2 bytes an element.
    inside = (3 if model.gated else 2) * (model.ffn_size * model.experts_per_token + model.shared_ffn_size)
    if model.kv_rank is None:
        attention = 2 * (model.attention_size + model.kv_size)
    else:  # queries and keys, values and the output's input, and what they are expanded from
        attention = 2 * (model.query_size + model.attention_size) + model.kv_rank + (model.query_rank or 0)
    wider = inside - 8 * model.hidden_size + attention - 4 * model.hidden_size
    tokens = sequence * layout.micro_batch
    kept += 2.0 * tokens * wider / layout.tp
    return kept - tokens * _spared_bytes(model, layout, partial=recomputation == "partial")


def _spared_bytes(model: Transformer, layout: Layout, *, partial: bool) -> float:
    """Return bytes of a token and layer that are not kept: what is computed again, and half of products' FP8 inputs."""
    norms = 2.0 * model.hidden_size / (layout.tp if layout.sequence_parallel else 1)
    activation = (model.ffn_size * model.experts_per_token + model.shared_ffn_size) / layout.tp
    in_fp8 = 1.0 if layout.precision == "fp8" else 0.0
    output = in_fp8 * model.attention_size / layout.tp
    if not partial:
        return in_fp8 * (norms + activation) + output
    # queries, keys and values are expanded again
    expanded = 0 if model.kv_rank is None else 2 * model.query_size + model.attention_size
    return 2.0 * (norms + activation + expanded / layout.tp) + output


def _activations(model: Transformer, layout: Layout, *, stage: int, num_micro_batches: int) -> tuple[float, float]:
    """Return the bytes of activations on a device, and those that wait in its host."""
    layers = layers_of_stage(model, layout, stage)
    again = layers if layout.recomputed_layers is None else min(layout.recomputed_layers, layers)
    kept_again, kept_once = layer_bytes(model, layout, layout.recomputation), 0.0
    kept = again * kept_again
    if again < layers:
        kept_once = layer_bytes(model, layout, "none")
        kept += (layers - again) * kept_once
    behind = layout.pp - 1 - stage
    held = (2 * behind + (layout.vpp - 1) * layout.pp + 1) / layout.vpp if layout.vpp > 1 else behind + 1.0
    if layout.schedule == "dualpipe":
        held = layout.pp + 1
    on_device, in_host = kept * min(held, num_micro_batches), 0.0
    if layout.offload_activations:
        stays = min(_OFFLOADED_LAYERS * max(kept_again, kept_once), on_device)
        on_device, in_host = stays, on_device - stays
    if layout.recomputation == "full":  # one layer at a time is computed anew
        on_device += layer_bytes(model, layout, "none")
    return on_device, in_host


def _buffers(model: Transformer, layout: Layout, stage: int) -> float:
    tokens = layout.micro_batch * model.sequence_length // layout.cp
    logits = 4.0 * tokens * model.vocabulary_size / layout.tp if stage == layout.pp - 1 else 0.0
    gathered = 0.0
    if layout.zero == 3:  # the layer that computes, and the next
        experts = model.num_experts * model.expert_parameters / layout.expert_tp / layout.ep
        gathered = 2 * 2 * (model.common_parameters / layout.tp + experts)
    return logits + gathered
