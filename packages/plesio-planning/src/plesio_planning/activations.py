"""Bytes of activations that a transformer keeps for its backward pass.

Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models") count what one layer of
Megatron keeps: s positions, b sequences, h hidden dimensions, a attention heads, 2 bytes an activation and 1 byte an
element of a dropout mask. Without any parallelism that is ``sbh (34 + 5as/h)`` (equation 1): 11 of the 34 in the
attention block, 19 in the MLP of width 4h, 4 in the two layer norms. ``5as/h`` are the softmax, its dropout and the
dropout's mask, which have an element for each pair of positions and head.

Tensor parallelism over t devices divides all but 10 of them (inputs of the two blocks, their dropout masks, layer
norms; equation 2); sequence parallelism divides those, too (equation 4). Selective recomputation keeps no ``5as/h`` and
computes the attention core again (equation 6); full recomputation keeps a layer's input only, ``2sbh``. An attention
kernel that never writes the softmax out (Dao et al. 2022) keeps what selective recomputation does, but for a number for
each position and head. Without dropout there are neither its masks, ``2sbh`` of the 10, nor what it makes of the
softmax, ``3as²b``.

Limits: other layers (gated MLPs, grouped-query attention), other precisions, what an allocator adds.
"""

from typing import Literal

from plesio.core.errors import ArgumentError, ConfigError

Recomputation = Literal["none", "selective", "full"]
"""The parts that the backward pass computes again instead of keeping them."""

_BYTES = 2
"""Bytes of an activation."""


def layer_activation_bytes(
    *,
    hidden: int,
    num_heads: int,
    sequence: int,
    batch: int = 1,
    recomputation: Recomputation = "none",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    dropout: bool = True,
) -> float:
    """Return the bytes that one device keeps of one layer and one micro-batch (Korthikanti et al. 2022, table 2).

    >>> round(layer_activation_bytes(hidden=12288, num_heads=96, sequence=2048) / 1e9, 2)  # GPT-3
    2.87

    Args:
        hidden: h.
        num_heads: a, of the whole layer.
        sequence: s, positions.
        batch: b, sequences of a micro-batch.
        recomputation: ``none``, ``selective`` (the attention core) or ``full`` (the layer).
        tensor_parallel: t, devices that share the layer.
        sequence_parallel: Whether they share what tensor parallelism alone would keep on each.
        dropout: Whether the layer has it.

    Raises:
        ConfigError: A number below 1, or sequence parallelism of one device.
    """
    _check(hidden=hidden, num_heads=num_heads, sequence=sequence, batch=batch, tensor_parallel=tensor_parallel)
    if sequence_parallel and tensor_parallel == 1:
        raise ConfigError("sequence parallelism of one device; write a tensor parallelism of 2 or more")
    sbh = float(sequence * batch * hidden)
    on_each = 1 / tensor_parallel if sequence_parallel else 1.0
    if recomputation == "full":
        return _BYTES * sbh * on_each
    of_softmax, whole = (5, 10) if dropout else (2, 8)
    attention = of_softmax * num_heads * sequence / hidden if recomputation == "none" else 0.0
    return sbh * (whole * on_each + (24 + attention) / tensor_parallel)


def boundary_bytes(
    *, hidden: int, sequence: int, batch: int = 1, tensor_parallel: int = 1, sequence_parallel: bool = False
) -> float:
    """Return bytes that a device sends to the next stage for a micro-batch, and gets back as a gradient: ``2sbh``.

    With sequence parallelism every device has a t-th of it; without, Megatron's scatter and gather sends as little
    (Narayanan et al. 2021, section 4.1), at the price of an all-gather.

    >>> boundary_bytes(hidden=12288, sequence=2048)
    50331648.0
    """
    _check(hidden=hidden, sequence=sequence, batch=batch, tensor_parallel=tensor_parallel)
    return _BYTES * sequence * batch * hidden / (tensor_parallel if sequence_parallel else 1)


def recomputed_share(recomputation: Recomputation, *, hidden: int, sequence: int) -> float:
    """Share of a layer's forward FLOPs that its backward pass does again.

    A layer's forward pass is ``24bsh² + 4bs²h`` FLOPs, of which ``4bs²h`` are the attention core (Narayanan et al.
    2021, appendix; Korthikanti et al. 2022, appendix A): selective recomputation does ``s / (6h + s)`` of it again.

    >>> f"{recomputed_share('selective', hidden=12288, sequence=2048):.1%}"
    '2.7%'
    """
    _check(hidden=hidden, sequence=sequence)
    if recomputation == "none":
        return 0.0
    return 1.0 if recomputation == "full" else sequence / (6 * hidden + sequence)


def _check(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ArgumentError(f"`{name} = {value}`; write 1 or more")
