"""An estimate's facts about real devices beyond their data sheets: few numbers, and the source of each."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CONSTANTS", "Constants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """How close devices come to their data sheets.

    Attributes:
        matrix_efficiency: Share of the peak that a large matrix product reaches in 16 bits or more, by architecture.
        fp8_efficiency: The same of FP8's peak.
        exposed_traffic: Share of a matrix product's memory traffic that its arithmetic does not hide.
        memory_efficiency: Share of the memory's bandwidth that all operations reach.
        network_efficiency: Share of the data sheet's bandwidth that exchanges between hosts reach.
        attention_efficiency: Share of the peak in 16 bits that fused attention reaches, by architecture.
        flash_1_efficiency: The same of FlashAttention's first version on Ampere.
        eager_traffic: Traffic of operations on elements that are not fused, in multiples of that of fused ones.
        contention: Seconds that computing takes longer for each second of an exchange beside it.
        kernel_s: Seconds that an operation takes before it does anything.
        launch_s: Seconds that a host takes to start an operation.
        convolution_efficiency: Share of the peak that a convolutional network reaches.
    """

    matrix_efficiency: Mapping[str, float]
    fp8_efficiency: Mapping[str, float]
    exposed_traffic: float
    memory_efficiency: float
    network_efficiency: float
    attention_efficiency: Mapping[str, float]
    flash_1_efficiency: float
    eager_traffic: float
    contention: float
    kernel_s: float
    launch_s: float
    convolution_efficiency: float


CONSTANTS = Constants(
    matrix_efficiency={
        "volta": 0.46,  # Shoeybi et al. 2019: 39 TFLOP/s of a GPT of 1.2 billion parameters on one V100
        "ampere": 0.817,  # fitted
        "hopper": 0.678,  # fitted
        "blackwell": 0.678,  # assumption: as hopper
        "cdna3": 0.44,  # assumption: hopper's, as products reach 620 of 1307 TFLOP/s for 720 of 989 (SemiAnalysis 2024)
        "tpu": 0.775,  # one figure: 238,000 tokens/s of PaLM 540B on 6144 TPU v4 (Chowdhery et al. 2022)
    },
    fp8_efficiency={
        "hopper": 0.629,  # fitted
        "blackwell": 0.629,  # assumption: as hopper
        "cdna3": 0.36,  # assumption: hopper's, as products reach 990 of 2615 for 1280 of 1979 (SemiAnalysis 2024)
    },
    exposed_traffic=0.624,  # fitted
    memory_efficiency=0.644,  # fitted
    network_efficiency=0.9,  # assumption: nccl-tests on eight adapters of 200 Gbit/s reach 180 to 190 of 200 GB/s
    attention_efficiency={
        "volta": 0.3,  # assumption: FlashAttention has no version for it
        "ampere": 0.6,  # Dao 2023, figure 5, FlashAttention-2: about 190 TFLOP/s of 312
        "hopper": 0.55,  # Shah et al. 2024, FlashAttention-3: forward 740 TFLOP/s of 989 at best, backward less
        "blackwell": 0.55,  # assumption: as hopper
        "cdna3": 0.36,  # assumption: as its matrix products, which hopper's attention falls short of by a sixth
        "tpu": 0.5,  # assumption: as splash attention on TPUs
    },
    flash_1_efficiency=0.311,  # fitted; Dao 2023 says 25 to 40 % of an A100's peak
    eager_traffic=1.227,  # fitted
    contention=0.608,  # fitted
    kernel_s=4e-6,  # assumption: begin and end of a CUDA kernel that waits in a queue
    launch_s=10e-6,  # assumption: PyTorch's way from Python to the queue, without CUDA graphs
    convolution_efficiency=0.22,  # ResNet-50 on A100 in mixed precision, about 2700 images/s (NVIDIA's examples)
)
"""Fitted by `estimate.calibrate` on the rows of `plesio_planning.estimate.published` that `validation` names,
or assumed."""
