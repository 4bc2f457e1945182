"""Seconds of what experts add to a layer beside their matrix products: tokens that go to them, and come back.

A token has k copies, one for each of its experts, which are on the devices of an expert-parallel group. All of them may
travel on their own; or a token goes to each host once, and from there to its experts over NVLink (DeepSeek-AI 2024,
section 3.2.2), in FP8 on its way to them where products are in FP8 (section 3.3.3). Experts that are drawn at random
from N hosts are on ``N (1 - (1 - 1/N)^k)`` of them, and from at most M hosts if routing is limited to so many. Beside
the exchange each device gathers its tokens' copies, sorts those that arrive by expert, and back: traffic of its memory.
"""

from plesio_planning.estimate.communication import DeviceGroup
from plesio_planning.estimate.kernels import Kernels
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Transformer

_GATHERED = 2.0  # copies written, and read to be added up
_SORTED = 4.0  # copies read and written in the order of their experts, and once more for the way back


def exchange_s(model: Transformer, layout: Layout, kernels: Kernels, group: DeviceGroup) -> float:
    """Return the seconds of a layer's exchanges: there and back, forward and backward."""
    if layout.ep == 1:
        return 0.0
    tokens = layout.micro_batch * model.sequence_length / layout.cp / layout.tp
    copies = model.experts_per_token * model.capacity_factor
    hosts = group.num_hosts
    elsewhere = copies * (1 - group.per_host / group.size)
    there_bytes = float(kernels.element_bytes)
    if layout.software.routes_by_host:
        reached = min(model.expert_hosts or hosts, hosts)
        elsewhere = min(elsewhere, reached * (1 - (1 - 1 / reached) ** copies) * (hosts - 1) / hosts)
        there_bytes = 1.0 if layout.precision == "fp8" else there_bytes
    # of the copies that are in a host some stay on the device where they are
    inside = (copies - (0.0 if layout.software.routes_by_host else elsewhere)) * (1 - 1 / group.per_host)
    one_byte_s = group.spread_s(
        local_bytes=tokens * inside * model.hidden_size, other_bytes=tokens * elsewhere * model.hidden_size
    )
    return 2 * (there_bytes + kernels.element_bytes) * one_byte_s


def permutation_s(model: Transformer, layout: Layout, kernels: Kernels) -> float:
    """Return the seconds in which a device reorders the tokens of a layer, as long forward as backward."""
    if model.num_experts == 1:
        return 0.0
    tokens = layout.micro_batch * model.sequence_length / layout.cp / layout.tp
    copies = tokens * model.experts_per_token * model.capacity_factor * model.hidden_size
    return kernels.elements_s(copies * (_GATHERED + (_SORTED if layout.ep > 1 else 0.0)))
