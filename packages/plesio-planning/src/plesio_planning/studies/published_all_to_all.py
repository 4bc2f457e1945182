"""A published all-to-all of a mixture of experts, and what three constants say of it.

DeepEP's low-latency kernels on H800 (DeepSeek 2025): 128 tokens a device, 7168 dimensions, 8 experts a token, which
are sent one message each; to the experts as 8-bit numbers with a 4-byte scale for every 128, back as 16-bit ones. Nodes
have 8 devices. With n devices, ``(n-8)/n`` of the messages leave the node and go through the device's network
interface, beside which those within the node can be neglected: ``α + that/B``. One node alone has its own bandwidth:
``α + 7/8 / B_node``. α and B are fitted to the ten times of more than one node, B_node to the other two.
"""

from dataclasses import dataclass

from plesio.core.predictions import Prediction
from plesio.cost.fit import fit_line

_MESSAGES = 128 * 8
_MESSAGE_BYTES = {"dispatch": 7168 + 7168 // 128 * 4, "combine": 2 * 7168}
_NODE = 8
_NIC_BYTES_PER_S = 50e9
"""400 Gbit/s, which the baseline takes at its word."""
_MEASURED_S = {
    "dispatch": {8: 77e-6, 16: 118e-6, 32: 155e-6, 64: 173e-6, 128: 192e-6, 256: 194e-6},
    "combine": {8: 114e-6, 16: 195e-6, 32: 273e-6, 64: 314e-6, 128: 369e-6, 256: 360e-6},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFit:
    """Three constants and what they predict.

    Attributes:
        latency_s: α.
        bytes_per_s: B, of a device's network interface.
        node_bytes_per_s: B_node, of its links in the node.
        predictions: Each published time; the baseline sends all that leaves the device at 50 GB/s.
    """

    latency_s: float
    bytes_per_s: float
    node_bytes_per_s: float
    predictions: tuple[Prediction, ...]


def fit_published() -> PublishedFit:
    """Find the constants that fit the published times best, and their errors.

    >>> fit = fit_published()
    >>> f"{fit.latency_s * 1e6:.0f} µs, {fit.bytes_per_s / 1e9:.0f} GB/s, {fit.node_bytes_per_s / 1e9:.0f} GB/s"
    '27 µs, 43 GB/s, 140 GB/s'
    """
    beyond = [
        (_leaving_bytes(way, devices, _NODE), time_s)
        for way, times_s in _MEASURED_S.items()
        for devices, time_s in times_s.items()
        if devices > _NODE
    ]
    line = fit_line([size for size, _ in beyond], [time_s for _, time_s in beyond])
    inside = [_leaving_bytes(way, _NODE, 1) / (times_s[_NODE] - line.intercept) for way, times_s in _MEASURED_S.items()]
    node_bytes_per_s = sum(inside) / len(inside)

    def predicted_s(way: str, devices: int) -> float:
        if devices == _NODE:
            return line.intercept + _leaving_bytes(way, devices, 1) / node_bytes_per_s
        return line.at(_leaving_bytes(way, devices, _NODE))

    return PublishedFit(
        latency_s=line.intercept,
        bytes_per_s=1 / line.slope,
        node_bytes_per_s=node_bytes_per_s,
        predictions=tuple(
            Prediction(
                setting={"devices": str(devices)},
                quantity=way,
                scale="relative",
                predicted=predicted_s(way, devices),
                measured=time_s,
                baseline=_leaving_bytes(way, devices, 1) / _NIC_BYTES_PER_S,
            )
            for way, times_s in _MEASURED_S.items()
            for devices, time_s in times_s.items()
        ),
    )


def _leaving_bytes(way: str, devices: int, group: int) -> float:
    """Return the bytes that a device sends out of its group of so many, if all experts are liked alike."""
    return (devices - group) / devices * _MESSAGES * _MESSAGE_BYTES[way]
