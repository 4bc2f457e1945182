"""What others measured and published: the rows that the estimate is calibrated on and checked with.

Sources:

- ``A``: Narayanan et al. 2021 (SC21), table 1: A100 80 GB, sequences of 2048, 51200 words, FP16, full recomputation. It
  gives hardware TFLOP/s a GPU, and its equation 3 how they became seconds. Replicas follow from the GPUs.
- ``C``: Korthikanti et al. 2022, table 5, same hardware, one replica: seconds of a step with full recomputation, and
  with selective recomputation and sequence parallelism. Memory: its figure 1, GiB a GPU.
- ``D``: Megatron-Core, weak scaling on H100: sequences of 4096, 131072 words, 48 replicas, model TFLOP/s a GPU. It says
  that all communication is overlapped, and nothing of micro-batches (1 is assumed), recomputation (that of fused
  attention) and interleaving. One layer a part is assumed, as Megatron overlaps a pipeline's sends only when it is
  interleaved, and as without it 314B, with 18 % of bubble, could not reach the utilisation of 7.1B, which has none.
- ``E``: Grattafiori et al. 2024, table 4: Llama 3 405B on H100 with sequences of 8192, TFLOP/s a GPU; optimizer and
  gradients are sharded over the replicas (section 3.3.2). It says that the pipeline is interleaved, and not into how
  many parts: one layer a part is assumed, as for D. Its third row, sequences of 131072 over 16 devices, is not here:
  attention is more than half of its FLOPs, and whether they count what a causal mask leaves out is not said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plesio.planning.estimate.hardware import Machine, parse_machine
from plesio.planning.estimate.layout import SOFTWARE, Layout
from plesio.planning.estimate.model import Transformer
from plesio.planning.estimate.named_models import MODELS, gpt

__all__ = ["PUBLISHED_MEMORY", "PUBLISHED_STEPS", "PublishedMemory", "PublishedStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A step that somebody timed.

    Attributes:
        source: ``A``, ``C``, ``D`` or ``E``.
        model: What was trained.
        layout: How.
        machine: What it runs on.
        global_batch: Sequences of a step.
        step_s: Seconds, reported or from the reported FLOP/s.
    """

    source: str
    model: Transformer
    layout: Layout
    machine: Machine
    global_batch: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMemory:
    """Memory of a GPU, GiB: what stays, and the activations of two ways to recompute.

    Attributes:
        step: The step of source C with full recomputation, whose model and layout it is.
        state_gib: Parameters, gradients and optimizer, without those of the embedding.
        activations_gib: GiB without recomputation and without sequence parallelism.
        selective_gib: GiB with selective recomputation and sequence parallelism.
    """

    step: PublishedStep
    state_gib: float
    activations_gib: float
    selective_gib: float


# model, tp, pp, vpp, GPUs, global batch, micro-batch, hardware TFLOP/s a GPU
_NARAYANAN = (
    ("gpt-1.7b", 1, 1, 1, 32, 512, 16, 137),
    ("gpt-3.6b", 2, 1, 1, 64, 512, 16, 138),
    ("gpt-7.5b", 4, 1, 1, 128, 512, 16, 142),
    ("gpt-18b", 8, 1, 1, 256, 1024, 8, 135),
    ("gpt-39b", 8, 2, 1, 512, 1536, 4, 138),
    ("gpt-76b", 8, 4, 3, 1024, 1792, 2, 140),
    ("gpt-145b", 8, 8, 2, 1536, 2304, 2, 148),
    ("gpt-310b", 8, 16, 2, 1920, 2160, 1, 155),
    ("gpt-530b", 8, 35, 3, 2520, 2520, 1, 163),
    ("gpt-1t", 8, 64, 1, 3072, 3072, 1, 163),
)
# model, tp, pp, vpp, GPUs, global batch, micro-batch, seconds with full and with selective recomputation;
# GiB of state, of activations, and of those with selective recomputation
_KORTHIKANTI = (
    ("gpt-22b", 8, 1, 1, 8, 4, 4, (1.42, 1.10), (45.56, 59.25, 9.56)),
    ("gpt3-175b", 8, 8, 3, 64, 64, 1, (18.13, 13.75), (45.56, 66.84, 12.35)),
    ("gpt-530b", 8, 35, 3, 280, 280, 1, (49.05, 37.83), (31.64, 114.02, 23.08)),
    ("gpt-1t", 8, 64, 1, 512, 512, 1, (94.42, 71.49), (32.96, 131.25, 26.56)),
)
# name, layers, hidden size, heads, tp, pp, GPUs, global batch, model TFLOP/s a GPU
_MEGATRON_CORE = (
    ("mcore-7.1b", 30, 4096, 32, 2, 1, 96, 192, 465.9),
    ("mcore-70b", 84, 8192, 64, 8, 2, 768, 384, 419.7),
    ("mcore-314b", 96, 16384, 128, 8, 8, 3072, 1536, 474.4),
)
# GPUs, replicas, global batch, model TFLOP/s a GPU
_LLAMA_3 = ((8192, 64, 2048, 430), (16384, 128, 2048, 400))


def _narayanan() -> list[PublishedStep]:
    rows = []
    for name, tp, pp, vpp, num_devices, global_batch, micro_batch, tflops in _NARAYANAN:
        model = _transformer(name)
        layout = Layout(
            tp=tp,
            pp=pp,
            vpp=vpp,
            dp=num_devices // (tp * pp),
            recomputation="full",
            micro_batch=micro_batch,
            precision="fp16",
            software=SOFTWARE["megatron-2021"],
        )
        step_s = global_batch * model.hardware_flops("full") / (num_devices * tflops * 1e12)
        rows.append(_row("A", model, layout, f"{num_devices}xa100", global_batch, step_s))
    return rows


def _korthikanti() -> list[PublishedStep]:
    rows = []
    for name, tp, pp, vpp, num_devices, global_batch, micro_batch, (full_s, selective_s), _ in _KORTHIKANTI:
        full = Layout(
            tp=tp,
            pp=pp,
            vpp=vpp,
            recomputation="full",
            micro_batch=micro_batch,
            precision="fp16",
            software=SOFTWARE["megatron-2022"],
        )
        selective = replace(full, recomputation="selective", sequence_parallel=True)
        for layout, step_s in ((full, full_s), (selective, selective_s)):
            rows.append(_row("C", _transformer(name), layout, f"{num_devices}xa100", global_batch, step_s))
    return rows


def _megatron_core() -> list[PublishedStep]:
    rows = []
    for name, layers, hidden, heads, tp, pp, num_devices, global_batch, tflops in _MEGATRON_CORE:
        gpt_2024 = gpt(name, layers=layers, hidden=hidden, heads=heads, sequence_length=4096, vocabulary=131072)
        model = replace(gpt_2024, tied_embeddings=False)  # only so do the parameters come to those of the name
        layout = Layout(
            tp=tp,
            pp=pp,
            vpp=layers // pp if pp > 1 else 1,
            dp=num_devices // (tp * pp),
            zero=1,
            sequence_parallel=tp > 1,
            software=SOFTWARE["megatron-core"],
        )
        step_s = global_batch * model.model_flops / (num_devices * tflops * 1e12)
        rows.append(_row("D", model, layout, f"{num_devices}xh100", global_batch, step_s))
    return rows


def _llama_3() -> list[PublishedStep]:
    model = _transformer("llama-3-405b")
    rows = []
    for num_devices, dp, global_batch, tflops in _LLAMA_3:
        layout = Layout(tp=8, pp=16, vpp=8, dp=dp, zero=2, sequence_parallel=True)
        step_s = global_batch * model.model_flops / (num_devices * tflops * 1e12)
        rows.append(_row("E", model, layout, f"{num_devices}xh100", global_batch, step_s))
    return rows


def _row(
    source: str, model: Transformer, layout: Layout, machine: str, global_batch: int, step_s: float
) -> PublishedStep:
    return PublishedStep(
        source=source,
        model=model,
        layout=layout,
        machine=parse_machine(machine),
        global_batch=global_batch,
        step_s=step_s,
    )


def _transformer(name: str) -> Transformer:
    model = MODELS[name]
    assert isinstance(model, Transformer)
    return model


PUBLISHED_STEPS: Sequence[PublishedStep] = (
    *_narayanan(),
    *_korthikanti(),
    *_megatron_core(),
    *_llama_3(),
)
"""Every row that gives a time, in the order of the tables."""

PUBLISHED_MEMORY: Sequence[PublishedMemory] = tuple(
    PublishedMemory(step=step, state_gib=state, activations_gib=activations, selective_gib=selective)
    for step, (*_, (state, activations, selective)) in zip(
        [step for step in PUBLISHED_STEPS if step.source == "C" and step.layout.recomputation == "full"],
        _KORTHIKANTI,
        strict=True,
    )
)
"""Korthikanti et al. 2022, figure 1."""
