"""Published measurements by others: the rows that the estimate is calibrated on and checked with.

They are in ``published.csv``, one row a run; ``docs/planning/estimate.md`` has the sources by their letters. What they
do not say themselves:

- ``A`` and ``H`` (Narayanan et al. 2021, tables 1 and 2) give hardware TFLOP/s a GPU, and A's equation 3 how they
  became seconds. Replicas follow from the GPUs.
- ``D``, ``K1``, ``K2`` (Megatron-Core) say that all communication is overlapped, and nothing of micro-batches,
  recomputation (that of fused attention) and interleaving. One layer a part is assumed, as Megatron overlaps a
  pipeline's sends only when it is interleaved, and as without it 314B, with 18 % of bubble, could not reach the
  utilisation of 7.1B, which has none. Micro-batches are assumed to be 1 in pipelines, and all 4 sequences of a replica
  elsewhere: with 1, 32B would hide so little of 16 GB of gradients and 8 GB of weights that all its computing would
  have to run at 0.73 of the peak, more than products alone reach. K1 chose the program.
- ``E`` (Llama 3 405B) says that the pipeline is interleaved, and not into how many parts: one layer a part is assumed.
  Nor does it say whether its FLOPs count what a causal mask leaves out. In the third row (sequences of 131072 over 16
  devices) attention is more than half of them: only if they do not count it does that row agree with the other two, so
  that is assumed. FlashAttention for Hopper came out after these runs (July 2024).
- ``F`` (MT-NLG 530B) has Megatron's tensor parallelism in DeepSpeed's pipeline, not interleaved; ``J1`` and ``J2``
  (BLOOM's trials) are in the same program, and J1, every other one, gives the time that it waits for its host.
- ``M`` (DeepSeek-V3) gives hours of an H800 a trillion tokens, with DualPipe and partial recomputation.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import takewhile
from typing import Any, Literal

from plesio_planning.estimate.hardware import Machine, parse_machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, Schedule, SoftwareName
from plesio_planning.estimate.model import Transformer
from plesio_planning.estimate.named_models import find_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The facts that all rows of a source share.

    Attributes:
        title: Whose runs they are.
        software: As in `plesio_planning.estimate.layout.SOFTWARE`.
        settings: Attributes of that program that differ.
        hardware_flops: Its TFLOP/s count what is computed anew.
        causal_flops: They leave out what a causal mask does.
        use: Constants are fitted on its rows; or those of experts' products are; or only one constant or the program is
            chosen by them; or nothing is, as they are kept apart.
        schedule: Order of a pipeline's micro-batches.
        host_bytes_per_s: Bandwidth of a host's adapters, if it is not the accelerator's.
        model: Arguments of `Transformer` that the rows do not have.
    """

    title: str
    software: SoftwareName
    settings: Mapping[str, Any] = field(default_factory=dict)
    hardware_flops: bool = False
    causal_flops: bool = False
    use: Literal["fitted", "experts", "chosen", "apart"] = "fitted"
    host_bytes_per_s: float | None = None
    schedule: Schedule = "1f1b"
    model: Mapping[str, Any]


_GPT = {"biases": True, "dropout": True, "tied_embeddings": True}
_BLOOM: Mapping[str, Any] = {
    "title": "BLOOM 2022",
    "software": "megatron-deepspeed-2022",
    "host_bytes_per_s": 50e9,
    "model": {"biases": True, "tied_embeddings": True},
}
_README: Mapping[str, Any] = {
    "title": "Megatron-Core's README 2024",
    "software": "current",
    # only untied do the parameters come to those of the name
    "model": {**_GPT, "tied_embeddings": False},
}
SOURCES: Mapping[str, Source] = {
    "A": Source(title="Megatron-LM 2021", software="megatron-2021", hardware_flops=True, model=_GPT),
    "C": Source(title="Megatron-LM 2022", software="megatron-2022", model=_GPT),
    "D": Source(**_README),
    "E": Source(
        title="Llama 3 2024",
        software="current",
        settings={"hopper_attention": False},
        causal_flops=True,
        use="apart",
        model={},
    ),
    "F": Source(title="MT-NLG 2022", software="megatron-deepspeed-2022", use="apart", model=_GPT),
    "G": Source(title="Megatron-Core 2025", software="megatron-core", model={}),
    "H": Source(title="DeepSpeed 2021", software="deepspeed-2021", hardware_flops=True, model=_GPT),
    "I": Source(title="FSDP 2023", software="fsdp-2023", model={"tied_embeddings": True}),
    "J1": Source(**_BLOOM, use="chosen"),
    "J2": Source(**_BLOOM, use="apart"),
    "K1": Source(**_README, use="chosen"),
    "K2": Source(**_README, use="apart"),
    "L": Source(title="Megatron-Bridge 2025", software="megatron-core", use="experts", model={}),
    "M": Source(title="DeepSeek-V3 2024", software="current", schedule="dualpipe", use="apart", model={}),
}
"""By the letter in the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A step that somebody timed.

    Attributes:
        source: A key of `SOURCES`.
        step_s: Seconds, reported or from the reported FLOP/s.
    """

    source: str
    model: Transformer
    layout: Layout
    machine: Machine
    global_batch: int
    step_s: float

    @property
    def family(self) -> str:
        """The family of its model: the letters with which its name begins."""
        return "".join(takewhile(str.isalpha, self.model.name))

    @property
    def program(self) -> str:
        """The software that ran it, and from when."""
        return SOURCES[self.source].title


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


def read_steps(text: str) -> tuple[PublishedStep, ...]:
    """Read the rows of a table like ``published.csv``."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(_step(row) for row in csv.DictReader(lines))


def _step(row: Mapping[str, str]) -> PublishedStep:
    source = SOURCES[row["source"]]
    model = _transformer(row, source)
    tp, pp, cp, num_devices = (int(row[name]) for name in ("tp", "pp", "cp", "gpus"))
    layout = Layout(
        tp=tp,
        pp=pp,
        vpp=int(row["vpp"]),
        dp=num_devices // (tp * pp * cp),
        cp=cp,
        ep=int(row["ep"] or 1),
        schedule=source.schedule,
        zero=int(row["zero"]),
        # A and C have none with full recomputation; all later rows of Megatron have it
        sequence_parallel=tp > 1 and row["recompute"] != "full",
        recomputation=row["recompute"],  # type: ignore[arg-type]  # Layout checks it
        micro_batch=int(row["micro_batch"]),
        precision=row["precision"],
        software=replace(SOFTWARE[source.software], **source.settings),
    )
    global_batch = int(row["global_batch"])
    if row["step_s"]:
        step_s = float(row["step_s"])
    else:
        flops = model.hardware_flops(layout.recomputation) if source.hardware_flops else model.model_flops
        if source.causal_flops:
            flops -= 3 * model.num_layers * model.core_attention_flops / 2
        step_s = global_batch * flops / (num_devices * float(row["tflops"]) * 1e12)
    machine = parse_machine(f"{num_devices}x{row['gpu']}")
    if source.host_bytes_per_s is not None:
        machine = replace(machine, nic=replace(machine.nic, bytes_per_s=source.host_bytes_per_s))
    return PublishedStep(
        source=row["source"], model=model, layout=layout, machine=machine, global_batch=global_batch, step_s=step_s
    )


def _transformer(row: Mapping[str, str], source: Source) -> Transformer:
    if not row["layers"]:
        named = find_model(row["model"], sequence_length=int(row["sequence"]))
        assert isinstance(named, Transformer)
        return named
    return Transformer(
        name=row["model"],
        num_layers=int(row["layers"]),
        hidden_size=int(row["hidden"]),
        num_heads=int(row["heads"]),
        num_kv_heads=int(row["kv_heads"]),
        ffn_size=int(row["ffn"]),
        vocabulary_size=int(row["vocabulary"]),
        sequence_length=int(row["sequence"]),
        gated=row["gated"] == "1",
        **source.model,
    )


PUBLISHED_STEPS: Sequence[PublishedStep] = read_steps(
    resources.files("plesio_planning.estimate").joinpath("published.csv").read_text(encoding="utf-8")
)
"""Every row that gives a time, in the order of the tables."""

# GiB of state, of activations, and of those with selective recomputation
_KORTHIKANTI = {
    "gpt-22b": (45.56, 59.25, 9.56),
    "gpt3-175b": (45.56, 66.84, 12.35),
    "gpt-530b": (31.64, 114.02, 23.08),
    "gpt-1t": (32.96, 131.25, 26.56),
}
PUBLISHED_MEMORY: Sequence[PublishedMemory] = tuple(
    PublishedMemory(step=step, state_gib=state, activations_gib=activations, selective_gib=selective)
    for step in PUBLISHED_STEPS
    if step.source == "C" and step.layout.recomputation == "full"
    for state, activations, selective in [_KORTHIKANTI[step.model.name]]
)
"""Korthikanti et al. 2022, figure 1."""
