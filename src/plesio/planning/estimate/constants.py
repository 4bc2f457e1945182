"""What an estimate knows of real devices beyond their data sheets: few numbers, and where each comes from."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CONSTANTS", "Constants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """How close devices come to their data sheets.

    Attributes:
        matrix_efficiency: Share of the peak that a large matrix product reaches, by architecture.
        exposed_traffic: Share of a matrix product's memory traffic that its arithmetic does not hide.
        memory_efficiency: Share of the memory's bandwidth that all operations reach.
        network_efficiency: Share of the data sheet's bandwidth that exchanges between hosts reach.
        fused_attention_efficiency: Share of a large matrix product's FLOP/s that fused attention reaches.
        kernel_s: Seconds that an operation takes before it does anything.
        convolution_efficiency: Share of the peak that a convolutional network reaches.
    """

    matrix_efficiency: Mapping[str, float]
    exposed_traffic: float
    memory_efficiency: float
    network_efficiency: float
    fused_attention_efficiency: float
    kernel_s: float
    convolution_efficiency: float


CONSTANTS = Constants(
    matrix_efficiency={
        "volta": 0.43,  # Shoeybi et al. 2019: 39 TFLOP/s of a GPT of 1.2 billion parameters on one V100
        "ampere": 0.768,  # fitted
        "hopper": 0.548,  # fitted
        "blackwell": 0.548,  # assumption: as hopper
        "cdna3": 0.36,  # assumption: hopper's, as products reach 620 of 1307 TFLOP/s for 720 of 989 (SemiAnalysis 2024)
        "tpu": 0.74,  # one figure: 238,000 tokens/s of PaLM 540B on 6144 TPU v4 (Chowdhery et al. 2022)
    },
    exposed_traffic=0.266,  # fitted
    memory_efficiency=0.640,  # fitted
    network_efficiency=0.9,  # assumption: nccl-tests on eight adapters of 200 Gbit/s reach 180 to 190 of 200 GB/s
    fused_attention_efficiency=0.7,  # Dao 2023, figure 5, on A100: about 190 TFLOP/s where matrix products reach 260
    kernel_s=4e-6,  # assumption: begin and end of a CUDA kernel that waits in a queue
    convolution_efficiency=0.22,  # ResNet-50 on A100 in mixed precision, about 2700 images/s (NVIDIA's examples)
)
"""Fitted by `planning.estimate.calibrate` on half of the rows of `plesio.planning.estimate.published`, or assumed."""
