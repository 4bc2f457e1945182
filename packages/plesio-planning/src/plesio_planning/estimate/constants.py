"""An estimate's facts about real devices beyond their data sheets: few numbers, and the source of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from plesio_planning.texts import read_texts


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
        expert_kernel_s: Seconds that a product for one of a device's experts takes more.
        fp8_expert_kernel_s: The same with its casts to FP8, by architecture.
        launch_s: Seconds that a host takes to start an operation.
        host_link_bytes_per_s: Bandwidth from a device to its host's memory.
        host_bytes_per_s: A device's share of the bandwidth of its host's memory.
        synchronize_s: Seconds that a device waits for its host at a layer of a micro-batch, in programs that make it.
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
    expert_kernel_s: float
    fp8_expert_kernel_s: Mapping[str, float]
    launch_s: float
    host_link_bytes_per_s: float
    host_bytes_per_s: float
    synchronize_s: float
    convolution_efficiency: float


CONSTANTS = Constants(**read_texts("constants", package="plesio_planning.estimate"))
"""The constants of ``constants.toml``."""
