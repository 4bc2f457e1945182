"""Bytes that a device sends for a transformer layer, by how the layer's matrices are cut over k devices.

A layer has four matrices: queries, keys and values (h by 3h), the attention's output (h by h), and the MLP's two (h by
4h and 4h by h). With n tokens, a device that has some columns of an a by b matrix makes some columns of the output; one
that has some rows makes a part of the sum of all outputs. The whole output then needs an all-gather or an all-reduce,
and the input's gradient the other of the two.

- *columns*, *rows*: every matrix by itself, its output made whole.
- *Megatron*: the first matrix of a pair by columns, the second by rows, so that what is between them stays apart: one
  all-reduce of ``nh`` elements a pair and pass, four a layer (Shoeybi et al. 2019).
- *sequence*: the same, where what is outside of the pairs is cut by tokens: a reduce-scatter and an all-gather for
  every all-reduce, and as the input is not kept whole, an all-gather of it again in the backward pass, which can be
  hidden behind computing (Korthikanti et al. 2022, section 4.2.2).
- *2D*: blocks on a grid of q by q devices. A product of matrices goes through q rounds in which blocks of two of the
  three matrices are broadcast or summed along rows and columns (SUMMA, van de Geijn & Watts 1997; Xu et al. 2021), so a
  device receives ``(q-1)/q²`` of the input and of the matrix; three products a matrix, one forward and two backward.

An all-reduce of S bytes sends ``2(k-1)/k S`` from each device, a reduce-scatter or an all-gather half of it.
"""

import math
from dataclasses import dataclass

from plesio.core.errors import ArgumentError
from plesio.cost.collectives import bytes_sent_per_rank

_MATRICES = ((1, 3), (1, 1), (1, 4), (4, 1))
"""Inputs and outputs of a layer's four matrices, in units of h."""


def check_heads(num_heads: int, *, tp: int, hidden_size: int) -> None:
    """Make sure that heads divide the width between layers, and devices the heads.

    Raises:
        ConfigError: One of them does not.
    """
    if hidden_size % num_heads:
        raise ArgumentError(
            f"`num_heads` is {num_heads}, which does not divide the {hidden_size} of `hidden_size`; "
            f"write a divisor of {hidden_size} for `num_heads`"
        )
    if num_heads % tp:
        raise ArgumentError(
            f"`tp` is {tp}, which does not divide the {num_heads} of `num_heads`; "
            f"write a divisor of {num_heads} for `tp`"
        )


@dataclass(frozen=True, slots=True)
class CutBytes:
    """Bytes that a device sends for a layer; with the 2D cut, those that it receives, which are as many on average."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        """Bytes of an iteration."""
        return self.forward + self.backward


def cut_bytes(*, num_devices: int, tokens: int, hidden: int, element_bytes: int = 2) -> dict[str, CutBytes]:
    """Return the bytes on the wire of a device and layer, by cut; 2D only where the devices make a square.

    >>> cuts = cut_bytes(num_devices=8, tokens=2048, hidden=12288)
    >>> f"{96 * cuts['Megatron'].both / 1e9:.1f} GB"
    '33.8 GB'

    Args:
        num_devices: k.
        tokens: n.
        hidden: h.
        element_bytes: Bytes of a number.
    """

    def gather(width: int) -> float:
        return bytes_sent_per_rank(
            tokens * width * hidden * element_bytes, num_ranks=num_devices, collective="all_gather"
        )

    def reduce(width: int) -> float:
        return bytes_sent_per_rank(tokens * width * hidden * element_bytes, num_ranks=num_devices)

    inputs, outputs = [a for a, _ in _MATRICES], [b for _, b in _MATRICES]
    cuts = {
        "columns": CutBytes(sum(map(gather, outputs)), sum(map(reduce, inputs))),
        "rows": CutBytes(sum(map(reduce, outputs)), sum(map(gather, inputs))),
        "Megatron": CutBytes(2 * reduce(1), 2 * reduce(1)),
        "sequence": CutBytes(2 * reduce(1), 2 * reduce(1) + 2 * gather(1)),
    }
    grid = math.isqrt(num_devices)
    if grid**2 == num_devices:
        a_product = sum((tokens * a + a * b * hidden) * hidden * element_bytes for a, b in _MATRICES)
        received = (grid - 1) / num_devices * a_product
        cuts["2D"] = CutBytes(received, 2 * received)
    return cuts


def pays_from_tokens(*, num_devices: int, hidden: int) -> float:
    """Return the tokens from which on the 2D cut sends less than Megatron's: ``3(q-1)/q² (7n + 12h) = 8 (k-1)/k n``.

    >>> round(pays_from_tokens(num_devices=64, hidden=12288))
    8674
    """
    share = 3 * (math.isqrt(num_devices) - 1) / num_devices
    inputs, elements = sum(a for a, _ in _MATRICES), sum(a * b for a, b in _MATRICES)
    saved = 8 * (num_devices - 1) / num_devices - share * inputs
    return share * elements * hidden / saved if saved > 0 else math.inf
